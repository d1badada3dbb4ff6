"""Stands between a real SGLang prefill rank and its real NIXL agent: writes can be held up before
they are posted, and NIXL can be made to say that they ended with an error."""

import threading


class NixlGate:
    def __init__(self, manager):
        self.open = threading.Event()
        self.open.set()
        self.fails = False
        self.held = 0  # calls that wait
        self.post, self.state = manager.agent.transfer, manager.agent.check_xfer_state
        manager.agent.transfer = self._transfer
        manager.agent.check_xfer_state = self._check_xfer_state

    def _transfer(self, *arguments):
        if not self.open.is_set():
            self.held += 1
            self.open.wait()
            self.held -= 1
        return self.post(*arguments)

    def _check_xfer_state(self, handle):
        state = self.state(handle)
        return "ERR" if self.fails and state == "DONE" else state
