"""A kvferry prefill rank serves stock SGLang decode ranks: bytes, aborts, failures, restarts."""

import itertools
import json
import os
import random
import socket
import time

import conftest
import pytest

SIZES = {"PAGES": 64, "AUX_SLOTS": 16}
ROOMS = int(os.environ.get("KVFERRY_INTEROP_ROOMS", "50"))


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture
def registry(peers, flavour):
    """Its port; it outlives every rank. All tests are of both flavours."""
    return peers.registry()


def make_pair(peers, registry):
    prefill = peers.kvferry(f"127.0.0.1:{registry}")
    decode = peers.sglang("decode", registry, **SIZES)
    assert decode.ask("topology") is not None
    return prefill, decode


@pytest.fixture(scope="module")
def shared_pair(tmp_path_factory, sglang_python, flavour):
    """A prefill and a decode rank that have found each other."""
    peers = conftest.Peers(tmp_path_factory.mktemp("shared"), sglang_python, flavour)
    yield make_pair(peers, peers.registry())
    peers.end()


@pytest.fixture
def pair(shared_pair):
    """The same for all tests that don't kill it; none may leave it so that the next one fails."""
    prefill, decode = shared_pair
    decode.ask("clear_memory")
    prefill.ask("forget_released")
    return prefill, decode


@pytest.fixture
def own_pair(peers, registry, sglang):
    prefill, decode = make_pair(peers, registry)
    decode.ask("clear_memory")
    return prefill, decode


def send_room(prefill, room, pages, slot, token=7):
    prefill.ask("open_sender", room)
    prefill.ask("init", room, len(pages), slot, token)
    prefill.ask("send", room, pages)


def open_room(decode, room):
    decode.ask("open_receiver", room)
    assert decode.ask("await_status", room, "WaitingForInput") == "WaitingForInput"


def await_metric(prefill, name, value):
    """What metrics tell is a moment old."""
    end = time.monotonic() + 10
    while (seen := prefill.ask("metric", name)) != value:
        assert time.monotonic() < end, f"{name} is {seen}, not {value}"


def check_arrived(prefill, decode, room, sources, targets, slot, token):
    assert decode.ask("digests", targets) == prefill.ask("digests", sources)
    assert decode.ask("aux_of", slot) == {"token": token, "cached": 8, "logprob": -0.5,
                                          "room": room}


def whole_room(prefill, decode, room, sources=(1, 2), targets=(5, 9), slot=3, token=4711):
    open_room(decode, room)
    decode.ask("send_metadata", room, list(targets), slot)
    send_room(prefill, room, list(sources), 2, token)
    assert decode.ask("await_status", room, "Success") == "Success"
    check_arrived(prefill, decode, room, list(sources), list(targets), slot, token)
    assert prefill.ask("await_status", room, "Success") == "Success"
    prefill.ask("clear", room)
    decode.ask("clear", room)


def test_pages_and_aux_arrive_as_they_are(pair):
    prefill, decode = pair
    whole_room(prefill, decode, 2**63 - 1)
    assert decode.ask("written_pages") == [5, 9], "and nowhere else"
    assert prefill.ask("released_pages") == 2


def test_either_side_may_come_first_and_chunks_may_be_many(pair):
    prefill, decode = pair
    prefill.ask("open_sender", 11)
    prefill.ask("init", 11, 4, 0, 5)
    prefill.ask("send", 11, [8])
    prefill.ask("send", 11, [3, 4])
    open_room(decode, 11)
    decode.ask("send_metadata", 11, [1, 0, 60, 61], 15)
    assert prefill.ask("await_status", 11, "Transferring") == "Transferring"
    prefill.ask("send", 11, [5])
    assert decode.ask("await_status", 11, "Success") == "Success"
    check_arrived(prefill, decode, 11, [8, 3, 4, 5], [1, 0, 60, 61], 15, 5)
    assert prefill.ask("await_status", 11, "Success") == "Success"


def test_what_decode_has_is_not_sent(pair):
    prefill, decode = pair
    open_room(decode, 12)
    decode.ask("send_metadata", 12, [20], 1, 32)
    prefill.ask("open_sender", 12)
    assert prefill.ask("await_status", 12, "WaitingForInput") == "WaitingForInput"
    assert prefill.ask("prefix_pages", 12) == 2
    prefill.ask("init", 12, 1, 0, 9)
    prefill.ask("send", 12, [7])
    assert decode.ask("await_status", 12, "Success") == "Success"
    check_arrived(prefill, decode, 12, [7], [20], 1, 9)
    assert decode.ask("written_pages") == [20]


def test_a_full_prefix_hit_moves_aux_alone(pair):
    prefill, decode = pair
    open_room(decode, 13)
    decode.ask("send_metadata", 13, [], 4, 48)
    prefill.ask("open_sender", 13)
    prefill.ask("init", 13, 0, 0, 21)
    prefill.ask("send", 13, [])
    assert decode.ask("await_status", 13, "Success") == "Success"
    assert decode.ask("aux_of", 4)["token"] == 21
    assert decode.ask("aux_of", 4)["room"] == 13
    assert decode.ask("written_pages") == []


def test_two_ranks_on_each_side(registry, kvferry, sglang):
    prefills = [kvferry(f"127.0.0.1:{registry}", 2, rank) for rank in range(2)]
    decodes = [sglang("decode", registry, 2, rank, **SIZES) for rank in range(2)]
    for decode in decodes:
        assert decode.ask("topology")["attn_tp_size"] == 2
        open_room(decode, 5)
        decode.ask("send_metadata", 5, [3, 4], 2)
    for prefill in prefills:
        send_room(prefill, 5, [30, 31], 1, 6)
    for prefill, decode in zip(prefills, decodes):
        assert decode.ask("await_status", 5, "Success") == "Success"
        check_arrived(prefill, decode, 5, [30, 31], [3, 4], 2, 6)
        assert prefill.ask("await_status", 5, "Success") == "Success"
    assert prefills[0].ask("digests", [30]) != prefills[1].ask("digests", [30])


@pytest.mark.parametrize("prefill_tp, decode_tp", [(2, 1), (1, 2)])
def test_ranks_of_unequal_tensor_parallel_engines(registry, kvferry, sglang, prefill_tp, decode_tp):
    prefills = [kvferry(f"127.0.0.1:{registry}", prefill_tp, rank) for rank in range(prefill_tp)]
    decodes = [sglang("decode", registry, decode_tp, rank, **SIZES) for rank in range(decode_tp)]
    for decode in decodes:
        assert decode.ask("topology")["attn_tp_size"] == prefill_tp
        decode.ask("clear_memory")
    for room in (5, 6):
        for decode in decodes:
            open_room(decode, room)
            decode.ask("send_metadata", room, [3, 40 + room], 2)
        for prefill in prefills:
            send_room(prefill, room, [30, 31], 1, room)
        for rank in (*decodes, *prefills):
            assert rank.ask("await_status", room, "Success") == "Success"
        for source, target in zip([30, 31], [3, 40 + room]):
            assert conftest.heads_of(decodes, target) == conftest.heads_of(prefills, source)
        for decode in decodes:
            assert decode.ask("aux_of", 2)["token"] == room
            assert decode.ask("written_pages") == sorted({3, *range(45, 41 + room)})
    # One of several that write, or that are written to, ends the room for all.
    for decode in decodes:
        open_room(decode, 7)
        decode.ask("send_metadata", 7, [50], 2)
    for prefill in prefills:
        prefill.ask("open_sender", 7)
        assert prefill.ask("await_status", 7, "WaitingForInput") == "WaitingForInput"
    decodes[0].ask("abort", 7)
    for rank in (*prefills, *decodes):
        assert rank.ask("await_status", 7, "Failed") == "Failed"
    decodes[0].ask("await_release", 7)


# --- aborts ---

def test_decode_aborts_before_its_metadata(pair):
    prefill, decode = pair
    prefill.ask("open_sender", 21)
    open_room(decode, 21)
    decode.ask("abort", 21)
    assert prefill.ask("await_status", 21, "Failed") == "Failed"
    assert "aborted by the decode rank" in prefill.ask("failure", 21)
    decode.ask("clear", 21)
    whole_room(prefill, decode, 22)


def test_decode_aborts_while_prefill_has_not_sent(pair):
    prefill, decode = pair
    open_room(decode, 23)
    decode.ask("send_metadata", 23, [3, 4], 0)
    prefill.ask("open_sender", 23)
    assert prefill.ask("await_status", 23, "WaitingForInput") == "WaitingForInput"
    decode.ask("abort", 23)
    decode.ask("await_release", 23)
    assert prefill.ask("await_status", 23, "Failed") == "Failed"
    assert decode.ask("written_pages") == []


def test_decode_aborts_without_a_sender(pair):
    prefill, decode = pair
    open_room(decode, 24)
    decode.ask("send_metadata", 24, [3, 4], 0)
    decode.ask("abort", 24)
    decode.ask("await_release", 24)
    decode.ask("clear", 24)
    prefill.ask("open_sender", 24)
    assert prefill.ask("await_status", 24, "Failed") == "Failed", "it is told what became of it"


def test_decode_aborts_in_the_middle(pair):
    """Once acknowledged nothing is written any more, though prefill goes on sending."""
    prefill, decode = pair
    open_room(decode, 25)
    decode.ask("send_metadata", 25, [3, 4, 5], 0)
    prefill.ask("open_sender", 25)
    prefill.ask("init", 25, 3, 0, 1)
    prefill.ask("send", 25, [1])
    prefill.ask("await_landed", 25, 4 * 2048)
    decode.ask("abort", 25)
    decode.ask("await_release", 25)
    assert decode.ask("written_pages") == [3]
    decode.ask("clear_memory")
    assert prefill.ask("await_status", 25, "Failed") == "Failed"
    with pytest.raises(AssertionError, match="aborted by the decode rank"):
        prefill.ask("send", 25, [2, 3])
    whole_room(prefill, decode, 26, targets=(30, 31))
    assert decode.ask("written_pages") == [30, 31]
    prefill.ask("clear", 25)
    assert prefill.ask("released_pages") == 3


def test_decode_aborts_after_the_end(pair):
    prefill, decode = pair
    whole_room(prefill, decode, 27)
    decode.ask("say", prefill.ask("rank_port"), ["ABORT", "27", "127.0.0.1",
                                                str(decode.ask("rank_port")), "99"])
    whole_room(prefill, decode, 27)


@pytest.mark.parametrize("room", [281, 282])
def test_prefill_aborts(pair, flavour, room):
    prefill, decode = pair
    open_room(decode, room)
    decode.ask("send_metadata", room, [3, 4], 0)
    prefill.ask("open_sender", room)
    assert prefill.ask("await_status", room, "WaitingForInput") == "WaitingForInput"
    if room == 282:  # in the middle
        prefill.ask("init", room, 2, 0, 1)
        prefill.ask("send", room, [1])
    prefill.ask("abort", room, "the client went away")
    assert decode.ask("await_status", room, "Failed") == "Failed"
    if flavour == "nixl":  # Mooncake's status has no reason
        assert "the client went away" in decode.ask("failure", room)
    decode.ask("abort", room)
    decode.ask("await_release", room)
    decode.ask("clear", room)
    whole_room(prefill, decode, room + 10)


def test_a_request_that_prefill_never_gets_fails_on_decode(pair):
    prefill, decode = pair
    open_room(decode, 30)
    decode.ask("send_metadata", 30, [3, 4], 0)
    assert decode.ask("await_status", 30, "Failed") == "Failed"
    decode.ask("clear", 30)
    whole_room(prefill, decode, 31)


# --- what should not be ---

def test_a_room_that_is_open_twice_hurts_only_itself(pair):
    prefill, decode = pair
    open_room(decode, 40)
    decode.ask("send_metadata", 40, [3, 4], 0)
    decode.ask("send_metadata", 40, [5, 6], 1)
    assert decode.ask("await_status", 40, "Failed") == "Failed"
    prefill.ask("open_sender", 41)
    prefill.ask("open_sender", 41)
    whole_room(prefill, decode, 42)


def test_pages_beyond_the_pool_are_refused_and_not_written(pair):
    prefill, decode = pair
    open_room(decode, 43)
    decode.ask("send_metadata", 43, [63, 64], 0)
    prefill.ask("open_sender", 43)
    assert decode.ask("await_status", 43, "Failed") == "Failed"
    assert prefill.ask("await_status", 43, "Failed") == "Failed"
    assert decode.ask("written_pages") == []


def test_a_pool_larger_than_prefills_is_of_use_where_its_size_is_told(registry, flavour, kvferry,
                                                                      sglang):
    prefill = kvferry(f"127.0.0.1:{registry}")
    decode = sglang("decode", registry, PAGES=128, AUX_SLOTS=16)
    assert decode.ask("topology") is not None
    if flavour == "nixl":
        whole_room(prefill, decode, 1, targets=(127, 64))
        assert decode.ask("written_pages") == [64, 127]
    open_room(decode, 2)
    decode.ask("send_metadata", 2, [128 if flavour == "nixl" else 64], 0)
    prefill.ask("open_sender", 2)
    assert decode.ask("await_status", 2, "Failed") == "Failed"


def test_memory_that_is_called_device_memory_is_refused_by_its_name(own_pair, flavour):
    if flavour != "nixl":
        pytest.skip("Mooncake's registration does not say what memory it is")
    prefill, decode = own_pair
    whole_room(prefill, decode, 1)
    # NIXL itself takes no memory of this host for device memory, so the word is put in here.
    frames = decode.ask("registration")
    assert frames[18] == "DRAM,DRAM,DRAM,DRAM"
    frames[18] = "DRAM,DRAM,DRAM,VRAM"
    decode.ask("say", prefill.ask("rank_port"), frames)
    await_metric(prefill, "sglang_sessions_refused_total", 1)
    open_room(decode, 2)
    decode.ask("send_metadata", 2, [3], 0)
    assert decode.ask("await_status", 2, "Failed") == "Failed"
    assert "1 of decode's 4 KV buffers are device memory (VRAM)" in decode.ask("failure", 2)


STRANGE = [
    [""],
    ["what", "is", "this"],
    ["None", "127.0.0.1", "x"],
    ["ABORT", "1"],
    ["ABORT", "not a room", "127.0.0.1", "1"],
    ["17", "127.0.0.1", "1", "session", "abc", "0", "", "1", "0", ""],
    ["-5", "127.0.0.1", "1", "session", "", "0", "", "1", "0", ""],
    ["WATERMARK", "1", "2", "session"],
    ["STAGING_RSP", "1", "0", "0", "0", "0", "session"],
    ["BOOTSTRAP", "7", "127.0.0.1", "1"],
    ["9" * 40, "127.0.0.1", "1", "session", "", "", "", "1", "0", ""],
    ["x"] * 100,
    ["NixlMsgGuard"],
    ["NixlMsgGuard", "None", "127.0.0.1", "1", "agent"],
    ["NixlMsgGuard", "17", "127.0.0.1", "1", "agent", "abc", "0", "1", "", "0", "0"],
]


def test_messages_that_make_no_sense_are_counted_and_harm_nobody(pair):
    prefill, decode = pair
    port = prefill.ask("rank_port")
    for frames in STRANGE:
        decode.ask("say", port, frames)
        whole_room(prefill, decode, 50)
    await_metric(prefill, "sglang_malformed_messages_total", 11)
    await_metric(prefill, "sglang_aborts_of_strangers_total", 1)
    await_metric(prefill, "sglang_messages_not_served_total", 3)


def test_a_registration_can_not_point_at_another_process(pair, flavour):
    """Its port is the decode rank's own, so what a stranger says of memory is taken for that
    rank's words; a port that nobody owns names nobody."""
    prefill, decode = pair
    port = prefill.ask("rank_port")
    refused = prefill.ask("metric", "sglang_rooms_refused_total")
    frames = decode.ask("registration")
    nobodys = str(free_port())
    if flavour == "nixl":
        frames[3:5] = [nobodys, "stranger"]
        room = ["NixlMsgGuard", "60", "127.0.0.1", nobodys, "stranger", "\0\0\0\0", "0", "1", "", "0",
                "0"]
    else:
        frames[2:4] = [nobodys, "127.0.0.1:1"]
        room = ["60", "127.0.0.1", nobodys, "127.0.0.1:1", "\0\0\0\0", "0", "", "1", "0", ""]
    decode.ask("say", port, frames)
    decode.ask("say", port, room)
    whole_room(prefill, decode, 61)
    await_metric(prefill, "sglang_sessions_refused_total", 1)
    await_metric(prefill, "sglang_rooms_refused_total", refused + 1)


# --- ends of processes ---

def test_decode_is_killed_and_comes_back(registry, own_pair, sglang):
    prefill, decode = own_pair
    open_room(decode, 70)
    decode.ask("send_metadata", 70, [3, 4], 0)
    prefill.ask("open_sender", 70)
    prefill.ask("open_sender", 71)
    assert prefill.ask("await_status", 70, "WaitingForInput") == "WaitingForInput"
    decode.kill()
    assert prefill.ask("await_status", 70, "Failed") == "Failed"
    again = sglang("decode", registry, **SIZES)
    assert again.ask("topology") is not None
    again.ask("clear_memory")
    whole_room(prefill, again, 72)
    assert again.ask("written_pages") == [5, 9]


def test_prefill_is_killed_and_comes_back(flavour, sglang, kvferry, monkeypatch):
    """Its registry dies and comes with it, as SGLang's rank 0 has it; that is what decode watches."""
    monkeypatch.setenv("SGLANG_DISAGGREGATION_HEARTBEAT_INTERVAL", "2")
    monkeypatch.setenv("SGLANG_DISAGGREGATION_HEARTBEAT_MAX_FAILURE", "1")
    registry, port = free_port(), free_port()
    prefill = kvferry(f"*127.0.0.1:{registry}", port=port)
    decode = sglang("decode", registry, **SIZES)
    assert decode.ask("topology") is not None
    whole_room(prefill, decode, 80)
    open_room(decode, 81)
    decode.ask("send_metadata", 81, [3, 4], 0)
    prefill.kill()
    assert decode.ask("await_status", 81, "Failed") == "Failed"
    decode.ask("clear", 81)
    prefill = kvferry(f"*127.0.0.1:{registry}", port=port)
    assert decode.ask("await_topology")
    whole_room(prefill, decode, 82)


def test_prefill_that_comes_back_unnoticed_refuses_what_it_has_no_registration_for(
        own_pair, kvferry, registry):
    prefill, decode = own_pair
    port = prefill.ask("rank_port")
    whole_room(prefill, decode, 85)
    prefill.kill()
    prefill = kvferry(f"127.0.0.1:{registry}", port=port)
    open_room(decode, 86)
    decode.ask("send_metadata", 86, [3, 4], 0)
    assert decode.ask("await_status", 86, "Failed") == "Failed"


# --- many ---

def test_rooms_in_flight_with_aborts_all_end(pair):
    """KVFERRY_INTEROP_ROOMS rooms, eight at a time, every tenth aborted at a drawn moment."""
    prefill, decode = pair
    prng = random.Random(1)
    rooms = iter(range(1_000, 1_000 + ROOMS))
    ends = {"Success": 0, "Failed": 0}
    given = 0
    while wave := list(itertools.islice(rooms, 8)):
        prefill.ask("fill", wave[0])
        decode.ask("clear_memory")
        # No page of a wave is another one's.
        pages = prng.sample(range(64), 4 * len(wave))
        targets = {room: pages[4 * i:4 * i + 4] for i, room in enumerate(wave)}
        sources = {room: prng.sample(range(64), 4) for room in wave}
        aborts = {room: prng.choice(["metadata", "open", "chunk", "sent"])
                  for room in wave if prng.random() < 0.1}

        def maybe_abort(room, when):
            if aborts.get(room) == when:
                decode.ask("abort", room)

        for room in wave:
            open_room(decode, room)
            decode.ask("send_metadata", room, targets[room], room % 16)
            maybe_abort(room, "metadata")
        for room in wave:
            prefill.ask("open_sender", room)
            maybe_abort(room, "open")
            slot = room % 16
            for verb, *rest in (("init", 4, slot, room), ("send", sources[room][:1]),
                                ("send", sources[room][1:])):
                line = json.dumps([verb, room, *rest])
                answer = json.loads(prefill.write(line))
                assert "error" not in answer or room in aborts, answer
                given += len(rest[0]) if verb == "send" and "error" not in answer else 0
                if verb == "send" and len(rest[0]) == 1:
                    maybe_abort(room, "chunk")
            maybe_abort(room, "sent")
        for room in wave:
            end = decode.ask("await_status", room, "Success")
            assert end == ("Failed" if room in aborts else "Success"), room
            ends[end] += 1
            if room in aborts:
                decode.ask("await_release", room)
            else:
                check_arrived(prefill, decode, room, sources[room], targets[room], room % 16, room)
            assert prefill.ask("await_status", room, "Success") in ("Success", "Failed")
            prefill.ask("clear", room)
            decode.ask("clear", room)
    assert sum(ends.values()) == ROOMS
    assert prefill.ask("released_pages") == given
