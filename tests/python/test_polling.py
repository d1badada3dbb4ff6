"""poll_many, take_changed, the event, reports."""

import array
import json
import select
import tracemalloc

import numpy
import pytest

import kvferry
import ranks
from kvferry import KvPoll


@pytest.mark.parametrize("kind", ["u1", "u4", "i4"])
def test_poll_many(pair, kind):
    waiting, doomed = pair.open(1), pair.open(2, first=8)
    waiting.grant()
    waiting.await_grant()
    doomed.sender.abort()
    ids = numpy.array([waiting.sender.id(), doomed.sender.id(), 2**63, waiting.sender.id()], "u8")
    statuses = numpy.full(4, 77, kind)
    assert pair.prefill.poll_many(ids, statuses) is None
    assert list(statuses) == [KvPoll.WaitingForInput, KvPoll.Failed, KvPoll.Failed,
                              KvPoll.WaitingForInput]
    pair.prefill.poll_many(array.array("Q", ids), statuses)  # Without numpy, too.
    pair.prefill.poll_many(ids[:0], statuses[:0])


def test_poll_many_in_many_parts(pair):
    room = pair.open(1)
    ids = numpy.zeros(10_000, "u8")
    ids[[0, 1023, 1024, 9_999]] = room.sender.id()
    for kind in ("u1", "u4"):
        statuses = numpy.full(len(ids), 9, kind)
        pair.prefill.poll_many(ids, statuses)
        assert numpy.array_equal(statuses, (ids != 0).astype(kind))  # Bootstrapping is 1.


def test_poll_many_allocates_nothing(pair):
    ids = numpy.zeros(100_000, "u8")
    for kind in ("u1", "u4"):
        statuses = numpy.empty(len(ids), kind)
        tracemalloc.start()
        pair.prefill.poll_many(ids, statuses)
        before, _ = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        pair.prefill.poll_many(ids, statuses)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak - before < 1_024


def test_poll_many_passes_a_receivers_pages(pair):
    room = pair.open(1)
    room.fill()
    room.grant()
    room.await_grant()
    room.sender.send(room.source)
    ids, statuses = numpy.array([room.receiver.id()], "u8"), numpy.empty(1, "u1")

    def ended():
        pair.decode.poll_many(ids, statuses)
        return statuses[0] == KvPoll.Success

    ranks.await_that(pair.decode, ended, "success")
    room.receiver.clear()
    pair.decode.stop()
    assert pair.decode.take_released() == []


def test_bad_arrays(pair):
    ids, statuses = numpy.zeros(2, "u8"), numpy.zeros(2, "u1")
    readonly = statuses.copy()
    readonly.flags.writeable = False
    cases = [
        (ids.astype("u4"), statuses, "ids: uint64 is needed, not format 'I'"),
        (ids.astype("f8"), statuses, "ids: uint64 is needed, not format 'd'"),
        (ids, statuses.astype("u2"), "statuses: uint8 or uint32 is needed, not format 'H'"),
        (ids, statuses.astype("f4"), "statuses: uint8 or uint32 is needed, not format 'f'"),
        (ids, numpy.zeros(3, "u1"), "statuses: 3 places for 2 ids"),
        (ids.reshape(1, 2), statuses, "ids: one dimension is needed, not 2"),
        (numpy.zeros(4, "u8")[::2], statuses, "ids: a contiguous buffer is needed"),
        (ids, readonly, "statuses: a contiguous, writable buffer is needed"),
        ([1, 2], statuses, "ids: a contiguous buffer is needed, not list"),
    ]
    for bad_ids, bad_statuses, words in cases:
        with pytest.raises(kvferry.InvalidArgument, match=words):
            pair.prefill.poll_many(bad_ids, bad_statuses)


def test_take_changed(pair):
    assert pair.prefill.take_changed() is None  # The first call: look at every handle.
    room = pair.open(1)
    room.sender.abort()
    changed = pair.prefill.take_changed()
    assert changed.typecode == "Q"
    assert room.sender.id() in changed
    statuses = numpy.empty(len(changed), "u1")
    pair.prefill.poll_many(changed, statuses)
    assert set(statuses) == {KvPoll.Failed}


def test_event_fd(pair):
    def readable():
        return bool(select.select([pair.prefill.event_fd()], [], [], 0)[0])

    room = pair.open(1)
    pair.prefill.drain_event_fd()
    assert not readable()
    room.sender.abort()
    assert readable()


def test_reports(pair):
    room = pair.open(1)
    room.grant()
    room.await_grant()
    assert json.loads(pair.prefill.dump_status())
    ranks.await_that(pair.prefill, lambda: any(state.path for state in pair.prefill.pairs()), "path")
    (state,) = pair.prefill.pairs()
    assert state.ready and state.instance == "decode" and state.path == "tcp"
    assert state.peer == pair.decode.control_endpoint()
    samples = {sample.name for sample in pair.prefill.metrics()}
    assert {"rooms_started_total", "sessions"} & samples
    assert all(check.ok and check.detail == "" for check in pair.prefill.readiness())
    assert pair.prefill.readiness_problems() == []
    assert {check.name for check in pair.prefill.readiness()} >= {"threads", "protocol"}


def test_keep_paired(pair):
    pair.decode.keep_paired(pair.server.address())
    ranks.await_that(pair.decode, lambda: any(state.ready for state in pair.decode.pairs()), "pair")
