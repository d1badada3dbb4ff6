"""A relay in front of one port: it can cut, refuse connections for a while, and lose what comes."""

import socket
import threading

RECEIVE_BYTES = 1 << 16


class Relay:
    def __init__(self, target_port):
        self.target_port = target_port
        self.accepted = 0
        self.forgotten = 0  # pieces that it took and lost
        self._is_swallowing = False
        self._changed = threading.Condition()
        self._connections = []
        self._lock = threading.Lock()
        self._listener = None
        self.port = 0
        self.listen()

    def listen(self):
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", self.port))
        listener.listen(16)
        self.port, self._listener = listener.getsockname()[1], listener
        threading.Thread(target=self._accept, args=(listener,), daemon=True).start()

    def refuse(self):
        """Ends all connections; new ones are refused until listen()."""
        # Wakes the thread that waits in accept(), which would hold the port otherwise.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()

    def cut(self):
        """Ends all connections; new ones are taken."""
        with self._lock:
            ended, self._connections = self._connections, []
        for each in ended:
            _shut(each)

    def swallow(self, on):
        """What comes from now on for the target is taken and lost."""
        self._is_swallowing = on

    def await_forgotten(self, count, seconds):
        with self._changed:
            return self._changed.wait_for(lambda: self.forgotten >= count, seconds)

    def _pass_on(self, _):
        """False for what is lost."""
        if not self._is_swallowing:
            return True
        with self._changed:
            self.forgotten += 1
            self._changed.notify_all()
        return False

    def _accept(self, listener):
        while True:
            try:
                here, _ = listener.accept()
            except OSError:
                return
            try:
                there = socket.create_connection(("127.0.0.1", self.target_port))
            except OSError:
                here.close()
                continue
            with self._lock:
                self.accepted += 1
                self._connections += [here, there]
            for source, target, passes in ((here, there, self._pass_on),
                                           (there, here, lambda _: True)):
                threading.Thread(target=_pump, args=(source, target, passes), daemon=True).start()


def _pump(source, target, passes):
    try:
        while data := source.recv(RECEIVE_BYTES):
            if passes(data):
                target.sendall(data)
    except OSError:
        pass
    _shut(source)
    _shut(target)


def _shut(each):
    try:
        each.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass  # The other end was faster.
