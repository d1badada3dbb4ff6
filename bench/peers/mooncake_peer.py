"""Mooncake transfer engine over TCP, addresses exchanged directly (P2PHANDSHAKE).

A request is one batch of the Python interface. Its only wait for a whole batch polls without a
pause, which on few cores takes time from the engine's own thread, so most of the expected time is
slept first. Batches of one page use the interface's test for single requests instead.

Default: a connection for each page. Tuned: the connection pool (4 lanes to a peer).
"""

import collections
import importlib.metadata
import sys
import time

import peer

PACKAGE = "mooncake-transfer-engine-non-cuda"
POLL_SECONDS = 20e-6
LARGEST_WINDOW_BYTES = 128 << 20
LARGEST_WINDOW_PAGES = 512  # The pool's queue takes 1024 and fails what waits for longer than 1 s.


def make_engine(pool):
    from mooncake.engine import TransferEngine
    engine = TransferEngine()
    if engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") != 0:
        raise peer.PeerError("the engine did not start")
    if engine.register_memory(pool.address, peer.POOL_BYTES) != 0:
        raise peer.PeerError("the pool was not registered")
    return engine


class Source:
    def __init__(self, control, pool):
        self.engine = make_engine(pool)
        self.pool = pool
        self.target, self.base = peer.receive_set_up(control)
        self.requests = collections.deque()
        self.page_bytes = 0
        self.step = 1
        self.seconds_per_request = 0.0

    def version(self):
        return f"Mooncake {importlib.metadata.version(PACKAGE)}"

    def ways(self, page_bytes, batch):
        shapes = [(1, 4), (1, 16), (1, 64), (16, 2), (16, 4), (128, 1), (128, 2), (128, 4)]
        if batch:
            shapes = [(batch, requests) for requests in (1, 4, 16, 64)]
        ways = [peer.Way(f"batch {count} x {requests}", count, requests)
                for count, requests in shapes
                if count * requests <= LARGEST_WINDOW_PAGES
                and count * requests * page_bytes <= LARGEST_WINDOW_BYTES]
        return ways or [peer.Way(f"batch {batch} x 1", batch, 1)]

    def start(self, way, page_bytes):
        self.page_bytes = page_bytes
        self.step = way.pages_per_request
        self.seconds_per_request = 0.0

    def submit(self, sources, targets):
        if self.step == 1:
            request = self.engine.transfer_submit_write(
                self.target, self.pool.address + int(sources[0]), self.base + int(targets[0]),
                self.page_bytes)
        else:
            request = self.engine.batch_transfer_async_write(
                self.target, (sources + self.pool.address).tolist(),
                (targets + self.base).tolist(), [self.page_bytes] * self.step)
        if request in (0, -1, (1 << 64) - 1):
            raise peer.PeerError("a request was refused")
        self.requests.append(request)

    def progress(self):
        if self.step == 1:
            return self.progress_single()
        start = time.monotonic()
        time.sleep(0.7 * self.seconds_per_request)
        if self.engine.get_batch_transfer_status([self.requests.popleft()]) != 0:
            raise peer.PeerError("a batch failed")
        seconds = time.monotonic() - start
        self.seconds_per_request = 0.8 * self.seconds_per_request + 0.2 * seconds
        return self.step

    def progress_single(self):
        done = 0
        while self.requests:
            status = self.engine.transfer_check_status(self.requests[0])
            if status < 0:
                raise peer.PeerError(f"a request failed ({status})")
            if status == 0:
                break
            self.requests.popleft()
            done += 1
        if done == 0:
            time.sleep(POLL_SECONDS)
        return done


class Target:
    def __init__(self, control, pool):
        self.engine = make_engine(pool)
        control.send((f"127.0.0.1:{self.engine.get_rpc_port()}", pool.address))

    def start(self, page_bytes):
        pass

    def progress(self):
        time.sleep(0.001)  # The engine's own thread does all.


def main():
    command = peer.Peer(Source, Target)
    command.state("protocol=tcp metadata=P2PHANDSHAKE")
    if command.options.tuned:
        command.set_default("MC_TCP_ENABLE_CONNECTION_POOL", "1")
    command.set_default("MC_LOG_LEVEL", "ERROR")
    command.set_default("GLOG_minloglevel", "2")
    return command.run()


if __name__ == "__main__":
    sys.exit(main())
