"""What kills or fools a stock SGLang prefill rank is done to one of kvferry's, too.

Each probe runs against both: against SGLang as a control, to show that it does what it is said to do.
"""

import struct

import pytest

SETTINGS = {"PAGES": 64, "AUX_SLOTS": 16, "WAIT_SECONDS": 3.0}


class Side:
    """A prefill rank, of SGLang's or of ours, and a stock decode rank that has found it."""

    def __init__(self, peers, kind):
        self.kind = kind
        self.peers = peers
        self.registry = peers.registry()
        if kind == "stock":
            self.prefill = peers.sglang("prefill", self.registry, **SETTINGS)
        else:
            self.prefill = peers.kvferry(f"127.0.0.1:{self.registry}")
        self.port = self.prefill.ask("rank_port")
        self.decode = self.new_decode()

    def new_decode(self):
        decode = self.peers.sglang("decode", self.registry, **SETTINGS)
        assert decode.ask("topology") is not None
        return decode

    def send(self, room):
        if self.kind == "ours":
            self.prefill.ask("init", room, 3, 0, 7)
            self.prefill.ask("send", room, [0, 1, 2])
        else:
            self.prefill.ask("send", room)

    def serves(self, room, decode=None):
        """Whether a room goes through as it should."""
        decode = decode or self.decode
        try:
            decode.ask("open_receiver", room)
            decode.ask("await_status", room, "WaitingForInput")
            decode.ask("send_metadata", room)
            self.prefill.ask("open_sender", room)
            if self.prefill.ask("await_status", room, "WaitingForInput") != "WaitingForInput":
                return False
            self.send(room)
            return decode.ask("await_status", room, "Success") == "Success"
        except AssertionError:
            return False

    def say(self, *frames):
        self.decode.ask("say", self.port, list(frames))

    def metadata(self, room, decode, pages, session=None, decode_ranks=1):
        port, own = decode.ask("rank_port"), decode.ask("registration")[3]
        return [str(room), "127.0.0.1", str(port), session or own,
                struct.pack(f"<{len(pages)}i", *pages).decode("latin-1"), "0", "",
                str(decode_ranks), "0", ""]


@pytest.fixture(params=["stock", "ours"])
def side(request, peers, sglang):
    return Side(peers, request.param)


@pytest.mark.parametrize("frames", [
    ["hello"], ["abc", "h", "1", "s:1", "", "", "", "1"], ["7", "h", "1", "s:1", "abc", "0", "", "1"],
    ["WATERMARK", "1", "0", "s"], ["STAGING_RSP", "1"]], ids=lambda frames: frames[0])
def test_one_message_that_makes_no_sense(side, frames):
    """It ends SGLang's only thread that hears of rooms, and its health stays green."""
    assert side.serves(1)
    side.say(*frames)
    assert side.serves(2) == (side.kind == "ours")


def test_metadata_of_a_session_that_is_not_registered(side):
    """SGLang takes it, and a worker dies of it: every fourth session is served no more."""
    assert side.serves(1)
    side.say(*side.metadata(2, side.decode, [1, 2, 3], session="127.0.0.1:15003"))
    side.prefill.ask("open_sender", 2)
    if side.kind == "stock":
        assert side.prefill.ask("await_status", 2, "WaitingForInput") == "WaitingForInput"
        side.send(2)
        assert side.prefill.ask("dead_threads") == 1
    else:
        assert side.serves(3)


def test_a_session_without_a_port(side):
    """SGLang takes it apart as a number, on the scheduler's thread."""
    assert side.serves(1)
    side.say(*side.metadata(2, side.decode, [1, 2, 3], session="nosession"))
    side.prefill.ask("open_sender", 2)
    if side.kind == "stock":
        assert side.prefill.ask("await_status", 2, "WaitingForInput") == "WaitingForInput"
        with pytest.raises(AssertionError, match="list index out of range"):
            side.send(2)
    else:
        assert side.serves(3)


def test_prefill_gives_a_request_up(side):
    """SGLang's decode is not told, and waits for its deadline of 300 s."""
    assert side.serves(1)
    side.decode.ask("open_receiver", 2)
    side.decode.ask("await_status", 2, "WaitingForInput")
    side.decode.ask("send_metadata", 2)
    side.prefill.ask("open_sender", 2)
    assert side.prefill.ask("await_status", 2, "WaitingForInput") == "WaitingForInput"
    side.prefill.ask("abort", 2, "given up")
    if side.kind == "stock":
        with pytest.raises(AssertionError, match="did not happen"):
            side.decode.ask("await_status", 2, "Failed")
    else:
        assert side.decode.ask("await_status", 2, "Failed") == "Failed"


def test_one_of_two_decode_ranks_aborts_before_the_request_is_there(side):
    """SGLang acknowledges at once and writes to that rank's pages later, though they are freed."""
    other = side.new_decode()
    assert side.serves(1) and side.serves(2, other)
    for each in (side.decode, other):
        each.ask("open_receiver", 3)
        each.ask("await_status", 3, "WaitingForInput")
        each.ask("clear_memory")
    own = side.decode.ask("rank_port")
    side.say(*side.metadata(3, side.decode, [1, 2, 3], decode_ranks=2))
    generation = side.decode.ask("arm", 3)
    side.say("ABORT", "3", "127.0.0.1", str(own), str(generation))
    side.decode.ask("await_release", 3)
    side.say(*side.metadata(3, other, [4, 5, 6], decode_ranks=2))
    side.prefill.ask("open_sender", 3)
    if side.kind == "stock":
        assert side.prefill.ask("await_status", 3, "WaitingForInput") == "WaitingForInput"
        assert side.prefill.ask("destinations", 3) == 2, "the freed pages are among them"
    else:
        assert side.prefill.ask("await_status", 3, "WaitingForInput") == "Failed"
        assert other.ask("await_status", 3, "Failed") == "Failed"
        assert side.decode.ask("written_pages") == []


def test_decode_ranks_that_do_not_agree_on_their_number(side):
    """SGLang's room never becomes ready."""
    other = side.new_decode()
    assert side.serves(1) and side.serves(2, other)
    side.prefill.ask("open_sender", 3)
    side.say(*side.metadata(3, side.decode, [1, 2], decode_ranks=2))
    side.say(*side.metadata(3, other, [1, 2], decode_ranks=1))
    if side.kind == "stock":
        with pytest.raises(AssertionError, match="did not happen"):
            side.prefill.ask("await_status", 3, "WaitingForInput")
    else:
        assert side.prefill.ask("await_status", 3, "WaitingForInput") == "Failed"


def test_rooms_that_nobody_asked_for(side):
    """SGLang remembers them for ever."""
    assert side.serves(1)
    for room in range(100, 150):
        side.say(*side.metadata(room, side.decode, [1, 2, 3]))
    if side.kind == "stock":
        assert side.prefill.ask("remembered_rooms") >= 50
    else:
        side.decode.ask("open_receiver", 149)
        assert side.decode.ask("await_status", 149, "Failed") == "Failed", "it is over, and told"
