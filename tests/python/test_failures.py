"""Rooms that fail: aborts, duplicates, lost managers; the first cause on both sides."""

import pickle

import pytest

import kvferry
import ranks
from kvferry import FailureCode, FailureWhere, KvPoll


@pytest.mark.parametrize("side", ["sender", "receiver"])
def test_abort(pair, side):
    room = pair.open(1)
    room.fill()
    room.grant()
    room.await_grant()
    getattr(room, side).abort("the client went away")
    assert getattr(room, side).poll() == KvPoll.Failed  # At once, without a word from the peer.
    room.await_ends()
    for end in (room.sender, room.receiver):
        failure = end.failure()
        assert failure.code == FailureCode.Aborted
        assert "the client went away" in failure.what
        assert failure.http_status == 499
    (released,) = ranks.take_released(pair.decode, 1)
    assert released.owner == room.receiver.id()
    assert sorted(released.pages) == sorted(room.target)


def test_abort_in_the_middle_holds_source_pages_until_they_are_quiet(pair):
    room = pair.open(1)
    room.fill()
    room.grant()
    room.await_grant()
    room.sender.send(room.source[:2])
    room.receiver.abort()
    room.await_ends()
    released = ranks.take_released(pair.prefill, 1)
    assert sorted(page for entry in released for page in entry.pages) == room.source[:2]


def test_duplicate_room(pair):
    room = pair.open(1)
    twin = kvferry.KvSender(pair.prefill, 1, room.binding)
    ranks.await_that(pair.prefill, lambda: twin.poll() == KvPoll.Failed, "refusal")
    assert twin.failure().code == FailureCode.DuplicateRoom
    other = kvferry.KvSender(pair.prefill, 1, kvferry.Binding.random())
    other.init(1)
    assert other.poll() == KvPoll.Bootstrapping
    assert room.sender.poll() == KvPoll.Bootstrapping


def test_wrong_calls_fail_the_room_and_raise(pair):
    room = pair.open(1)
    with pytest.raises(kvferry.KvferryError, match="init was called twice") as caught:
        room.sender.init(1)
    assert caught.value.failure.code == FailureCode.WrongState
    assert not isinstance(caught.value, ValueError)
    assert room.sender.poll() == KvPoll.Failed
    assert room.sender.failure() == caught.value.failure

    late = kvferry.KvSender(pair.prefill, 2, 2)
    with pytest.raises(kvferry.KvferryError, match="send before init"):
        late.send([1])
    misplaced = kvferry.KvReceiver(pair.prefill, 3, 3)
    assert misplaced.poll() == KvPoll.Failed
    assert "a prefill manager has no such handle" in misplaced.failure().what
    with pytest.raises(kvferry.KvferryError, match="write_aux is for prefill"):
        pair.decode.write_aux(0, 1, 1, kvferry.AuxRecord())
    with pytest.raises(kvferry.KvferryError, match="read_aux is for decode"):
        pair.prefill.read_aux(0, 1, 1)
    with pytest.raises(kvferry.KvferryError, match="keep_paired is for decode"):
        pair.prefill.keep_paired(pair.server.address())


def test_unwritten_aux_is_refused(pair):
    with pytest.raises(kvferry.KvferryError) as caught:
        pair.decode.read_aux(0, 1, 1)
    assert caught.value.failure.code == FailureCode.AuxInvalid


def test_first_cause_when_the_peer_stops(pair):
    room = pair.open(1)
    room.fill()
    room.grant()
    room.await_grant()
    pair.prefill.stop()
    assert room.sender.poll() == KvPoll.Failed
    assert room.sender.failure().code == FailureCode.ShuttingDown
    room.await_receiver(KvPoll.Failed)
    assert room.receiver.failure().code in (FailureCode.ShuttingDown, FailureCode.PeerLost)


def test_unknown_prefill(pair):
    receiver = kvferry.KvReceiver(pair.decode, 1, 1)
    receiver.init(pair.server.address(), "nobody")
    ranks.await_that(pair.decode, lambda: receiver.poll() == KvPoll.Failed, "failure")
    assert receiver.failure().code == FailureCode.PrefillUnknown
    assert "nobody" in receiver.failure().what


def test_failure_is_a_value():
    failure = kvferry.Failure(FailureCode.PeerLost, FailureWhere.Peer, "silence", "10.0.0.1:7", 3)
    assert failure == kvferry.Failure(FailureCode.PeerLost, FailureWhere.Peer, "silence",
                                      "10.0.0.1:7", 3)
    assert failure != kvferry.Failure()
    assert str(failure) == "peer-lost at peer (peer 10.0.0.1:7, rank 3): silence"
    assert pickle.loads(pickle.dumps(failure)) == failure
    assert kvferry.http_status(FailureCode.InvalidArgument) == 400


def test_errors_can_be_pickled():
    with pytest.raises(kvferry.InvalidArgument) as caught:
        kvferry.Options(lease_ms=1)
    copy = pickle.loads(pickle.dumps(caught.value))
    assert type(copy) is kvferry.InvalidArgument
    assert str(copy) == str(caught.value)
    assert copy.failure == caught.value.failure
