"""Rooms that succeed: every byte, every page's way back."""

import numpy
import pytest

import kvferry
import ranks
from kvferry import KvPoll


@pytest.mark.parametrize("lender", sorted(ranks.LENDERS))
@pytest.mark.parametrize("transport", ["tcp", "shm"])
def test_bytes_arrive(server, lender, transport):
    pair = ranks.Pair(lender, {"transport": transport}, server)
    room = pair.open(1)
    room.fill()
    assert not room.arrived()  # The comparison can fail.
    room.grant()
    room.await_grant()
    ranks.await_that(pair.prefill, lambda: [state.path for state in pair.prefill.pairs()] == [transport],
                     f"pair over {transport}")
    room.sender.send(room.source[:1])
    room.sender.send(numpy.array(room.source[1:]))
    room.await_ends()
    assert (room.sender.poll(), room.receiver.poll()) == (KvPoll.Success, KvPoll.Success)
    assert room.arrived()
    assert room.receiver.attempt() != 0
    assert room.sender.landed_bytes() >= len(room.source) * 2 * ranks.LAYERS * ranks.ITEM_BYTES
    assert room.sender.failure() is None and room.receiver.failure() is None
    record = pair.decode.read_aux(room.aux_slot, room.number, room.binding)
    assert record == kvferry.AuxRecord(1, prompt_tokens=7)
    pair.stop()


def test_pages_come_back_by_take_released_only(pair):
    room = pair.open(1)
    room.fill()
    room.grant()
    room.await_grant()
    room.sender.send(room.source)
    room.await_ends()
    (released,) = ranks.take_released(pair.prefill, 1)
    assert released.owner == room.sender.id()
    assert released.room == 1
    assert released.binding == room.binding
    assert list(released.pages) == room.source
    assert released.aux_slot == room.aux_slot
    assert list(released.state_slots) == []
    # Decode's are the caller's since poll() returned Success.
    assert pair.decode.take_released() == []


def test_unread_success_gives_pages_back(pair):
    room = pair.open(1)
    room.fill()
    room.grant()
    room.await_grant()
    room.sender.send(room.source)
    room.await_sender(KvPoll.Success)
    room.receiver.clear()
    (released,) = ranks.take_released(pair.decode, 1)
    assert sorted(released.pages) == sorted(room.target)


def test_prefix_and_empty_room(pair):
    room = pair.open(1, pages=2)
    room.fill()
    room.receiver.send_metadata(numpy.array([9, 8], "u4"), room.aux_slot,
                                decode_prefix_tokens=3 * ranks.PAGE_TOKENS)
    room.target = [9, 8]
    room.await_grant()
    assert room.sender.decode_prefix_pages() == 3
    room.sender.send(tuple(room.source))
    room.await_ends()
    assert room.receiver.poll() == KvPoll.Success and room.arrived()

    empty = pair.open(2, pages=0)
    empty.fill()
    empty.grant()
    empty.await_grant()
    empty.sender.send([])
    empty.await_ends()
    assert empty.receiver.poll() == KvPoll.Success


def test_many_rooms_one_after_another_and_at_once(pair):
    for turn in range(3):
        rooms = [pair.open(turn * 16 + i, pages=4, first=4 * i) for i in range(16)]
        for room in rooms:
            room.fill()
            room.grant()
        for room in rooms:
            room.await_grant()
            room.sender.send(room.source)
        for room in rooms:
            room.await_ends()
            assert room.receiver.poll() == KvPoll.Success, room.receiver.failure()
            assert room.arrived()
        released = ranks.take_released(pair.prefill, len(rooms))
        assert sorted(page for entry in released for page in entry.pages) == list(range(ranks.PAGES))
