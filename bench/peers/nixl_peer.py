"""NIXL with its UCX backend over TCP.

A request is one transfer of n pages, made from descriptor lists that hold all pages (prepared once
for each page size), posted, polled and released. NIXL reports it as done after a flush, so the
pages are in place then.

Default: the agent's defaults (a progress thread on each side). Tuned: larger TCP segments. Without
the progress thread it was slower, pinned or not.
"""

import collections
import importlib.metadata
import sys
import time

import peer

PACKAGE = "nixl-cu12"
POLL_SECONDS = 20e-6
LARGEST_WINDOW_BYTES = 64 << 20


def make_agent(name, pool):
    from nixl_cu12 import nixl_agent
    agent = nixl_agent(name)
    if "UCX" not in agent.backends:
        raise peer.PeerError("the agent has no UCX backend")
    agent.register_memory([(pool.address, peer.POOL_BYTES, 0, "")], "DRAM")
    return agent


class Source:
    def __init__(self, control, pool):
        import numpy
        self.numpy = numpy
        self.agent = make_agent("source", pool)
        self.pool = pool
        metadata, self.base = peer.receive_set_up(control)
        self.target = self.agent.add_remote_agent(metadata)
        self.requests = collections.deque()
        self.lists = {}
        self.page_bytes = 0
        self.step = 1

    def version(self):
        return f"NIXL {importlib.metadata.version(PACKAGE)}"

    def ways(self, page_bytes, batch):
        shapes = [(1, 16), (1, 64), (16, 2), (16, 4), (128, 2), (128, 4), (512, 2), (512, 4),
                  (2048, 2)]
        if batch:
            shapes = [(batch, requests) for requests in (2, 4, 16, 64)]
        ways = [peer.Way(f"write {count} x {requests}", count, requests)
                for count, requests in shapes
                if count * requests * page_bytes <= LARGEST_WINDOW_BYTES]
        return ways or [peer.Way(f"write {batch} x 1", batch, 1)]

    def prepare(self, agent, base):
        numpy = self.numpy
        count = peer.POOL_BYTES // self.page_bytes
        pages = numpy.zeros((count, 3), dtype=numpy.uint64)
        pages[:, 0] = base + numpy.arange(count, dtype=numpy.uint64) * self.page_bytes
        pages[:, 1] = self.page_bytes
        return self.agent.prep_xfer_dlist(agent, pages, "DRAM")

    def start(self, way, page_bytes):
        self.page_bytes = page_bytes
        self.step = way.pages_per_request
        if page_bytes not in self.lists:
            self.lists[page_bytes] = (self.prepare("NIXL_INIT_AGENT", self.pool.address),
                                      self.prepare(self.target, self.base))

    def submit(self, sources, targets):
        near, far = self.lists[self.page_bytes]
        request = self.agent.make_prepped_xfer(
            "WRITE", near, (sources // self.page_bytes).astype(self.numpy.int32),
            far, (targets // self.page_bytes).astype(self.numpy.int32))
        if self.agent.transfer(request) == "ERR":
            raise peer.PeerError("a request was refused")
        self.requests.append(request)

    def progress(self):
        done = 0
        while self.requests:
            state = self.agent.check_xfer_state(self.requests[0])
            if state == "ERR":
                raise peer.PeerError("a request failed")
            if state != "DONE":
                break
            self.requests.popleft().release()
            done += self.step
        if done == 0:
            time.sleep(POLL_SECONDS)
        return done


class Target:
    def __init__(self, control, pool):
        self.agent = make_agent("target", pool)
        control.send((self.agent.get_agent_metadata(), pool.address))

    def start(self, page_bytes):
        pass

    def progress(self):
        time.sleep(0.001)  # The agent's own thread does all.


def main():
    command = peer.Peer(Source, Target)
    command.state("backend=UCX progress_thread=on")
    command.set_default("UCX_TLS", "tcp")
    if command.options.tuned:
        command.set_default("UCX_TCP_TX_SEG_SIZE", "1M")
        command.set_default("UCX_TCP_RX_SEG_SIZE", "1M")
    command.set_default("NIXL_LOG_LEVEL", "ERROR")
    return command.run()


if __name__ == "__main__":
    sys.exit(main())
