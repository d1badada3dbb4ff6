#!/usr/bin/env python3
"""Silent peers through the Python package: nothing that an engine's thread calls may wait for them.

    silent_peer.py [--seconds S] [--check] [--hold-gil]

One decode rank (this process) and prefill ranks p0, p1, p3 and a registry (processes of their own). In the
course of S seconds p1 is stopped, p3 is killed and its port taken by a listener that never reads, the
registry is stopped, and rooms are opened at a registry whose address swallows every connect. All the while this
process' main thread works as an engine does, each millisecond: it polls, takes pages back, opens rooms at
the sound peer and opens and aborts rooms at the silent ones. A second thread dumps the status, a third
counts milliseconds.

Prints how long the engine's calls took and how far the count got. Exit 1 when a room at the sound peer
fails, a room at a silent one does not or does not name it; with --check also when a call took 50 ms or
more, a thousandth of them 20 ms or more, or the count is below 75 % of that of an idle process. --hold-gil is
the control: one more thread waits in C without giving the GIL away, as a careless binding would.
"""

import argparse
import ctypes
import os
import pathlib
import select
import signal
import socket
import subprocess
import sys
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

import numpy

import kvferry
import ranks
from kvferry import KvPoll

PAGES = 2_048
ROOM_PAGES = 4
DOOMED_ROOMS = 8
OPTIONS = {"transport": "tcp", "heartbeat_interval_ms": 100, "heartbeat_timeout_ms": 1_000,
           "session_grace_ms": 500, "lane_heartbeat_ms": 250, "lane_timeout_ms": 1_000}
MAX_CALL_S = 0.050
P999_CALL_S = 0.020
COUNTER_SHARE = 0.75


def run_rank(name, registry):
    """A prefill rank: opens the rooms that its input names; p0 sends what is granted."""
    memory = ranks.Memory(pages=PAGES)
    args = ranks.kv_args(kvferry.Role.Prefill, memory.regions(), instance=name)
    manager = kvferry.KvManager(args, OPTIONS | {"bootstrap_addresses": [registry]})
    print(manager.control_endpoint(), flush=True)
    senders, sent = [], set()
    lines = os.fdopen(sys.stdin.fileno(), "rb", buffering=0)
    rest = b""
    while True:
        readable, _, _ = select.select([lines, manager.event_fd()], [], [])
        manager.drain_event_fd()
        if lines in readable:
            data = lines.read(65_536)
            if not data:
                return
            *complete, rest = (rest + data).split(b"\n")
            for line in complete:
                room, binding = line.decode().split()
                sender = kvferry.KvSender(manager, int(room), binding)
                sender.init(ROOM_PAGES)
                senders.append(sender)
        if name == "p0":
            for sender in senders:
                if sender.id() not in sent and sender.poll() == KvPoll.WaitingForInput:
                    sender.send(range(ROOM_PAGES))
                    sent.add(sender.id())
        senders = [sender for sender in senders if not kvferry.is_terminal(sender.poll())]
        manager.take_released()


def run_registry():
    """The registry, until its input ends."""
    with kvferry.BootstrapServer() as server:
        print(server.address(), flush=True)
        sys.stdin.read()


class Child:
    """A process of this script; its first line is its address."""

    def __init__(self, *arguments):
        self.process = subprocess.Popen([sys.executable, __file__, *arguments], text=True,
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.address = self.process.stdout.readline().strip()

    def tell(self, line):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def kill(self):
        self.process.kill()
        self.process.wait()


class Beside:
    """A thread beside the engine's, until it is told to end."""

    def __init__(self, step):
        self.count = 0
        self.running = True
        self.thread = threading.Thread(target=self.run, args=[step], daemon=True)
        self.thread.start()

    def run(self, step):
        while self.running:
            step()
            self.count += 1

    def end(self):
        self.running = False
        self.thread.join()
        return self.count


class Engine:
    """The decode rank and its thread's calls, each of them timed."""

    def __init__(self, registry, swallower):
        memory = ranks.Memory(pages=PAGES)
        self.registry = registry
        self.swallower = swallower
        self.manager = kvferry.KvManager(
            ranks.kv_args(kvferry.Role.Decode, memory.regions()),
            OPTIONS | {"bootstrap_addresses": [registry], "bootstrap_allow": [swallower]})
        self.free = list(range(PAGES))
        self.rooms = {}  # id -> (peer, receiver, pages, tick of its abort)
        self.number = 0
        self.times = []  # (seconds, call)
        self.ended = []  # (peer, status, failure)

    def timed(self, call, *arguments):
        started = time.perf_counter()
        result = call(*arguments)
        self.times.append((time.perf_counter() - started, call.__name__))
        return result

    def open(self, peer, child, registry=None, abort_at=None):
        """One room, if there are pages for it; child is told of it unless it is silent."""
        if len(self.free) < ROOM_PAGES:
            return
        pages, self.free = self.free[:ROOM_PAGES], self.free[ROOM_PAGES:]
        self.number += 1
        binding = kvferry.Binding.random()
        if child is not None:
            child.tell(f"{self.number} {binding}")
        receiver = self.timed(kvferry.KvReceiver, self.manager, self.number, binding)
        self.timed(receiver.init, registry or self.registry, peer)
        self.timed(receiver.send_metadata, pages)
        self.rooms[receiver.id()] = (peer, receiver, pages, abort_at)

    def step(self, tick):
        """What an engine does each millisecond."""
        ids = numpy.fromiter(self.rooms, "u8", len(self.rooms))
        statuses = numpy.empty(len(ids), "u1")
        self.timed(self.manager.poll_many, ids, statuses)
        for handle, status in zip(ids.tolist(), statuses.tolist(), strict=True):
            peer, receiver, pages, abort_at = self.rooms[handle]
            if kvferry.is_terminal(KvPoll(status)):
                if status == KvPoll.Success:
                    self.free.extend(pages)
                self.ended.append((peer, KvPoll(status), receiver.failure(), abort_at))
                del self.rooms[handle]
                self.timed(receiver.clear)
            elif abort_at is not None and tick >= abort_at:
                self.timed(receiver.abort)
        for released in self.timed(self.manager.take_released):
            self.free.extend(released.pages)


def squat(address):
    """A listener at the address of a dead process that never reads."""
    host, port = address.rsplit(":", 1)
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((host, int(port)))
    listener.listen(64)
    return listener


def swallow():
    """A listener whose full queue makes the kernel drop each further SYN, and what keeps it full."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=0)
    callers = [socket.socket() for _ in range(4)]
    for caller in callers:
        caller.setblocking(False)
        caller.connect_ex(listener.getsockname())
    return [listener, *callers]


def play(engine, peers, registry, seconds):
    """The sequence; returns the listener that took p3's port."""
    started = time.monotonic()
    plan = [(seconds * 5 / 60, lambda: peers["p1"].process.send_signal(signal.SIGSTOP)),
            (seconds * 15 / 60, peers["p3"].kill),
            (seconds * 20 / 60, lambda: registry.process.send_signal(signal.SIGSTOP))]
    listener, tick = None, 0
    while (elapsed := time.monotonic() - started) < seconds:
        if plan and elapsed >= plan[0][0]:
            plan.pop(0)[1]()
            if listener is None and peers["p3"].process.returncode is not None:
                listener = squat(peers["p3"].address)
        if tick % 8 == 0:
            engine.open("p0", peers["p0"])
        if tick % 16 == 4 and elapsed >= seconds * 20 / 60:
            engine.open(["p1", "p3"][tick // 16 % 2], None, abort_at=tick + 8)
        if tick % 256 == 12 and elapsed >= seconds * 25 / 60:
            engine.open("nobody", None, registry=engine.swallower, abort_at=tick + 64)
        engine.step(tick)
        tick += 1
        time.sleep(max(0.0, started + tick * 0.001 - time.monotonic()))
    deadline = time.monotonic() + ranks.PATIENCE_S
    while any(abort_at is None for *_, abort_at in engine.rooms.values()):
        engine.step(tick)
        if time.monotonic() > deadline:
            break
    return listener


def judge(engine, peers):
    """What is wrong with the rooms' ends."""
    wrong = []
    sound = [status for peer, status, _, _ in engine.ended if peer == "p0"]
    if not sound or any(status != KvPoll.Success for status in sound):
        wrong.append(f"rooms at p0: {sound.count(KvPoll.Success)} of {len(sound)} succeeded")
    for name in ("p1", "p3"):
        failures = [failure for peer, _, failure, abort_at in engine.ended
                    if peer == name and abort_at is None]
        if len(failures) != DOOMED_ROOMS:
            wrong.append(f"{len(failures)} of {DOOMED_ROOMS} rooms at {name} have ended")
        for failure in failures:
            if failure is None or peers[name].address not in str(failure):
                wrong.append(f"a room at {name} does not name it: {failure}")
    return wrong


def sleep_once():
    time.sleep(0.001)


def hold_gil():
    ctypes.PyDLL(None).usleep(60_000)


def run(seconds, check, beside):
    """Exit code. beside: what further threads do, over and over."""
    registry = Child("--registry")
    peers = {name: Child("--rank", name, registry.address) for name in ("p0", "p1", "p3")}
    sockets = swallow()
    engine = Engine(registry.address, "{}:{}".format(*sockets[0].getsockname()))
    idle = Beside(sleep_once)
    time.sleep(1)
    nominal_per_s = idle.end()
    try:
        engine.manager.keep_paired(registry.address)
        ranks.await_that(engine.manager, lambda: sum(p.ready for p in engine.manager.pairs()) == 3, "pairs")
        for name in ("p1", "p3"):
            for _ in range(DOOMED_ROOMS):
                engine.open(name, peers[name])
        ranks.await_that(engine.manager,
                         lambda: all(r.poll() == KvPoll.Transferring for _, r, _, _ in engine.rooms.values()),
                         "grants")
        engine.times.clear()
        began = time.monotonic()
        counter = Beside(sleep_once)
        others = [Beside(step) for step in beside]
        others.append(Beside(lambda: (engine.manager.dump_status(), time.sleep(0.1))))
        sockets.append(play(engine, peers, registry, seconds))
        share = counter.end() / (time.monotonic() - began) / nominal_per_s
        for other in others:
            other.end()
        wrong = judge(engine, peers)
    finally:
        engine.manager.stop()
        for child in (*peers.values(), registry):
            child.kill()
        for each in sockets:
            each.close()
    times = sorted(engine.times)
    (p999, _), (longest, slowest) = times[len(times) * 999 // 1000], times[-1]
    print(f"{len(times)} calls of the engine's thread: p99.9 {p999 * 1e3:.2f} ms, "
          f"max {longest * 1e3:.2f} ms ({slowest}); "
          f"{sum(peer == 'p0' for peer, *_ in engine.ended)} rooms at p0; "
          f"counter at {share:.0%} of {nominal_per_s}/s")
    if check and (longest >= MAX_CALL_S or p999 >= P999_CALL_S or share < COUNTER_SHARE):
        wrong.append("the figures miss their goals: 50 ms, 20 ms, 75 %")
    for line in wrong:
        print(line, file=sys.stderr)
    return 1 if wrong else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--seconds", type=float, default=60, help="default 60")
    parser.add_argument("--check", action="store_true", help="figures that miss their goals are an error")
    parser.add_argument("--hold-gil", action="store_true", help="the control")
    parser.add_argument("--registry", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--rank", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.registry:
        return run_registry()
    if options.rank:
        return run_rank(*options.rank)
    return run(options.seconds, options.check, [hold_gil] if options.hold_gil else [])


if __name__ == "__main__":
    sys.exit(main())
