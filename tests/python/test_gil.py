"""Calls that do work let other Python threads run.

The interpreter is told never to take the GIL away by itself. So a second thread moves on only while a
call of the first has given it away.
"""

import contextlib
import sys
import threading
import time

import numpy
import pytest

import kvferry
import ranks

CALLS = 100_000  # of a call that must not give the GIL away


class Counter:
    """A thread that counts whenever it has the GIL, which it gives back after each count."""

    def __init__(self):
        self.count = 0
        self.running = True
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self):
        while self.running:
            self.count += 1
            time.sleep(0)


@pytest.fixture
def counter():
    """Counting, while nothing but a call can switch threads."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1_000)
    made = Counter()
    yield made
    made.running = False
    made.thread.join()
    sys.setswitchinterval(interval)


def progresses(counter, call):
    """Whether the counter moves during calls; looks until the tests' patience is over."""
    deadline = time.monotonic() + ranks.PATIENCE_S
    before = counter.count
    while counter.count == before:
        if time.monotonic() > deadline:
            return False
        call()
    return True


def test_the_counter_stands_still_without(pair, counter):
    sender = pair.open(1).sender
    ids, statuses = numpy.zeros(16, "u8"), numpy.zeros(16, "u1")
    before = counter.count
    for _ in range(CALLS):
        sender.poll()
        pair.prefill.poll_many(ids, statuses)
    assert counter.count == before


CASES = {
    "create and stop": lambda pair: kvferry.KvManager(
        ranks.kv_args(kvferry.Role.Decode, ranks.Memory().regions()), ranks.OPTIONS).stop(),
    "server": lambda pair: kvferry.BootstrapServer().stop(),
    "dump_status": lambda pair: pair.prefill.dump_status(),
    "metrics": lambda pair: pair.prefill.metrics(),
    "readiness": lambda pair: pair.prefill.readiness(),
    "take_released": lambda pair: pair.prefill.take_released(),
    "take_changed": lambda pair: pair.prefill.take_changed(),
    "pairs": lambda pair: pair.prefill.pairs(),
    "open": lambda pair: kvferry.KvSender(pair.prefill, 1, kvferry.Binding.random()),
}


@pytest.mark.parametrize("call", CASES.values(), ids=CASES.keys())
def test_work_gives_the_gil_away(pair, counter, call):
    assert progresses(counter, lambda: call(pair))


def test_poll_many_of_many(pair, counter):
    ids, statuses = numpy.zeros(200_000, "u8"), numpy.zeros(200_000, "u1")
    assert progresses(counter, lambda: pair.prefill.poll_many(ids, statuses))


def test_rooms_calls(pair, counter):
    numbers = iter(range(10**6))

    def one(call):
        binding = kvferry.Binding.random()
        sender = kvferry.KvSender(pair.prefill, next(numbers), binding)
        receiver = kvferry.KvReceiver(pair.decode, next(numbers), binding)
        before = counter.count
        call(sender, receiver)
        moved.append(counter.count != before)

    calls = {
        "init": lambda sender, receiver: sender.init(4),
        "receiver init": lambda sender, receiver: receiver.init(pair.server.address(), "prefill"),
        "abort": lambda sender, receiver: sender.abort(),
        "clear": lambda sender, receiver: receiver.clear(),
    }
    for name, call in calls.items():
        moved = []
        deadline = time.monotonic() + ranks.PATIENCE_S
        while not any(moved) and time.monotonic() < deadline:
            one(call)
        assert any(moved), name


def test_send_and_send_metadata(pair, counter):
    pages = list(range(ranks.PAGES))
    numbers = iter(range(10**6))

    def sends():
        sender = kvferry.KvSender(pair.prefill, next(numbers), kvferry.Binding.random())
        sender.init(len(pages))
        before = counter.count
        sender.send(pages)
        return counter.count != before

    def grants():
        receiver = kvferry.KvReceiver(pair.decode, next(numbers), kvferry.Binding.random())
        receiver.init(pair.server.address(), "prefill")
        before = counter.count
        with contextlib.suppress(kvferry.KvferryError):
            receiver.send_metadata(pages)
        return counter.count != before

    for call in (sends, grants):
        deadline = time.monotonic() + ranks.PATIENCE_S
        while not call():
            assert time.monotonic() < deadline, call.__name__
