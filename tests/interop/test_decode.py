"""A kvferry decode rank takes rooms from stock SGLang prefill ranks: bytes, aborts, failures,
restarts, strangers."""

import itertools
import os
import random
import time

import conftest
import pytest

SIZES = {"PAGES": 64, "AUX_SLOTS": 16, "ENGINE": "vm"}
ROOMS = int(os.environ.get("KVFERRY_INTEROP_ROOMS", "50"))


def start_prefills(peers, registry, tp_size=1):
    made = [peers.sglang("prefill", registry, tp_size, rank, **SIZES) for rank in range(tp_size)]
    for prefill in made:
        prefill.ask("fill", 1)
    return made


def start_decodes(peers, registry, tp_size=1):
    return [peers.kvferry_decode(f"127.0.0.1:{registry}", tp_size, rank)
            for rank in range(tp_size)]


@pytest.fixture
def registry(peers, flavour):
    """Its port; it outlives every rank. All tests are of both flavours."""
    return peers.registry()


@pytest.fixture(scope="module")
def shared_pair(tmp_path_factory, sglang_python, flavour):
    """A prefill and a decode rank."""
    peers = conftest.Peers(tmp_path_factory.mktemp("shared"), sglang_python, flavour)
    registry = peers.registry()
    yield start_prefills(peers, registry)[0], start_decodes(peers, registry)[0]
    peers.end()


@pytest.fixture
def pair(shared_pair):
    """The same for all tests that don't kill it; none may leave it so that the next one fails."""
    prefill, decode = shared_pair
    decode.ask("clear_memory")
    decode.ask("forget_released")
    return prefill, decode


@pytest.fixture
def own_pair(peers, registry, sglang):
    return start_prefills(peers, registry)[0], start_decodes(peers, registry)[0]


def open_room(prefills, decodes, room, pages=(5, 9), slot=3, prefix_tokens=0):
    """Until every prefill rank has the leave of every decode rank."""
    for prefill in prefills:
        prefill.ask("open_sender", room)
    for decode in decodes:
        decode.ask("open_receiver", room)
        decode.ask("send_metadata", room, list(pages), slot, prefix_tokens)
    for prefill in prefills:
        assert prefill.ask("await_status", room, "WaitingForInput") == "WaitingForInput"


def send(prefills, room, pages=(1, 2), slot=2, token=4711):
    for prefill in prefills:
        prefill.ask("init", room, len(pages), slot, token)
        prefill.ask("send_pages", room, list(pages))


def clear(prefills, decodes, room):
    for decode in decodes:
        decode.ask("clear", room)
    for prefill in prefills:
        prefill.ask("clear_sender", room)


def check_arrived(prefills, decodes, room, sources, targets, slot, token):
    for source, target in zip(sources, targets, strict=True):
        assert conftest.heads_of(decodes, target) == conftest.heads_of(prefills, source)
    for decode in decodes:
        assert decode.ask("aux_of", room, slot) == {"token": token, "cached": 8, "logprob": -0.5}


def whole_room(prefills, decodes, room, sources=(1, 2), targets=(5, 9), slot=3, token=4711):
    open_room(prefills, decodes, room, targets, slot)
    send(prefills, room, sources, token=token)
    for decode in decodes:
        assert decode.ask("await_status", room, "Success") == "Success", decode.ask("failure", room)
    check_arrived(prefills, decodes, room, sources, targets, slot, token)
    for prefill in prefills:
        assert prefill.ask("await_status", room, "Success") == "Success"
    clear(prefills, decodes, room)


def await_metric(rank, name, least):
    """What metrics tell is a moment old."""
    end = time.monotonic() + 10
    while (seen := rank.ask("metric", name)) < least:
        assert time.monotonic() < end, f"{name} is {seen}, not {least}"


def say(prefill, decode, *frames):
    prefill.ask("say", decode.ask("rank_port"), [str(frame) for frame in frames])


# --- rooms that go through ---


def test_pages_and_aux_arrive_as_they_are(pair):
    prefill, decode = pair
    whole_room([prefill], [decode], 2**63 - 1)
    assert decode.ask("written_pages") == [5, 9], "and nowhere else"
    assert decode.ask("released") == [], "they are the caller's"


def test_either_side_may_come_first_and_chunks_may_be_many(pair):
    prefill, decode = pair
    decode.ask("open_receiver", 11)
    decode.ask("send_metadata", 11, [1, 0, 60, 61], 15, 0)
    assert decode.ask("await_status", 11, "Transferring") == "Transferring"
    prefill.ask("open_sender", 11)
    assert prefill.ask("await_status", 11, "WaitingForInput") == "WaitingForInput"
    prefill.ask("init", 11, 4, 0, 5)
    for chunk in ([8], [3, 4], [7]):
        prefill.ask("send_pages", 11, chunk)
    assert decode.ask("await_status", 11, "Success") == "Success"
    check_arrived([prefill], [decode], 11, [8, 3, 4, 7], [1, 0, 60, 61], 15, 5)
    clear([prefill], [decode], 11)


def test_what_decode_has_is_not_sent(pair):
    prefill, decode = pair
    open_room([prefill], [decode], 12, [20], 1, 32)
    assert prefill.ask("prefix_tokens", 12) == 32
    send([prefill], 12, [7])
    assert decode.ask("await_status", 12, "Success") == "Success"
    check_arrived([prefill], [decode], 12, [7], [20], 1, 4711)
    assert decode.ask("written_pages") == [20]
    clear([prefill], [decode], 12)


def test_a_full_prefix_hit_moves_aux_alone(pair):
    prefill, decode = pair
    open_room([prefill], [decode], 13, [], 4, 48)
    send([prefill], 13, [], token=21)
    assert decode.ask("await_status", 13, "Success") == "Success"
    assert decode.ask("aux_of", 13, 4)["token"] == 21
    assert decode.ask("written_pages") == []
    clear([prefill], [decode], 13)


@pytest.mark.parametrize("prefill_tp, decode_tp", [(2, 2), (2, 1), (1, 2)])
def test_ranks_of_tensor_parallel_engines_exchange_their_shares(peers, registry, flavour, sglang,
                                                                prefill_tp, decode_tp):
    if flavour == "nixl" and prefill_tp != decode_tp:
        pytest.skip("stock SGLang can't: see the test below")
    prefills = start_prefills(peers, registry, prefill_tp)
    decodes = start_decodes(peers, registry, decode_tp)
    for room in (1, 2):
        whole_room(prefills, decodes, room, targets=(5, 9 + room))


def test_what_a_stock_prefill_would_die_of_is_not_said_to_it(peers, registry, flavour, sglang):
    """Its only control thread ends with the registration of host memory of another TP size."""
    if flavour != "nixl":
        pytest.skip("it is served")
    prefills, [decode] = start_prefills(peers, registry, 2), start_decodes(peers, registry)
    decode.ask("open_receiver", 1)
    assert decode.ask("await_status", 1, "Success") == "Failed"
    assert "prefill has 2 TP ranks and decode 1" in decode.ask("failure", 1)
    decodes = start_decodes(peers, registry, 2)
    whole_room(prefills, decodes, 2)


def test_many_rooms_of_which_some_are_aborted(peers, registry, sglang):
    """Every room comes to its end, and no page of a room that succeeded has a byte of another."""
    [prefill], [decode] = start_prefills(peers, registry), start_decodes(peers, registry)
    draw = random.Random(5)
    free, slots = list(range(64)), list(range(16))
    aborted = 0
    for first in range(1, ROOMS + 1, 5):
        rooms = {room: ([free.pop(0), free.pop(0)], slots.pop(0))
                 for room in range(first, min(first + 5, ROOMS + 1))}
        decode.ask("forget_released")
        for room, (pages, slot) in rooms.items():
            prefill.ask("open_sender", room)
            decode.ask("open_receiver", room)
            decode.ask("send_metadata", room, pages, slot, 0)
        victims = [room for room in rooms if draw.random() < 0.1]
        sources = {room: draw.sample(range(64), 2) for room in rooms}
        for room in rooms:
            assert prefill.ask("await_status", room, "WaitingForInput") == "WaitingForInput"
            if room in victims and draw.random() < 0.5:
                decode.ask("abort", room)
            else:
                send([prefill], room, sources[room], rooms[room][1], room)
        for room in victims:
            decode.ask("abort", room)
        pages_back = []
        for room, (pages, slot) in rooms.items():
            end = decode.ask("await_status", room, "Success")
            if end == "Success":
                check_arrived([prefill], [decode], room, sources[room], pages, slot, room)
            else:
                assert room in victims, decode.ask("failure", room)
                aborted += 1
                pages_back += pages
            decode.ask("clear", room)
        released = decode.ask("await_released", len(pages_back))
        assert sorted(released) == sorted(pages_back)
        for room, (pages, slot) in rooms.items():
            prefill.ask("clear_sender", room)
            free += pages
            slots.append(slot)
    assert aborted >= ROOMS // 25
    assert decode.ask("metric", "invariants_broken_total") == 0


# --- aborts ---


def test_an_abort_before_the_grant_frees_the_pages_at_once(pair):
    prefill, decode = pair
    decode.ask("open_receiver", 21)
    assert decode.ask("await_status", 21, "WaitingForInput") == "WaitingForInput"
    decode.ask("abort", 21)
    assert decode.ask("await_status", 21, "Failed") == "Failed"
    clear([], [decode], 21)


def test_an_abort_before_prefill_sends_frees_the_pages_by_its_acknowledgement(pair):
    prefill, decode = pair
    open_room([prefill], [decode], 22)
    decode.ask("abort", 22)
    assert decode.ask("await_released", 2) == [5, 9]
    assert prefill.ask("await_status", 22, "Success") == "Failed"
    clear([prefill], [decode], 22)


def test_pages_of_an_aborted_room_wait_while_prefill_writes(pair):
    prefill, decode = pair
    prefill.ask("hold_writes")
    open_room([prefill], [decode], 23)
    send([prefill], 23)
    prefill.ask("await_held")
    decode.ask("abort", 23)
    assert decode.ask("await_status", 23, "Success") == "Failed"
    # Another room goes through meanwhile, so much time has passed for an answer.
    decode.ask("open_receiver", 24)
    assert decode.ask("await_status", 24, "WaitingForInput") == "WaitingForInput"
    decode.ask("abort", 24)
    assert decode.ask("released") == []
    prefill.ask("let_writes_go")
    assert decode.ask("await_released", 2) == [5, 9]
    clear([prefill], [decode], 23)
    decode.ask("clear", 24)


def test_an_abort_by_prefill_alone_ends_the_room_when_decode_ends_it(pair):
    """Stock SGLang tells decode nothing: whoever asked both sides ends both."""
    prefill, decode = pair
    open_room([prefill], [decode], 25)
    prefill.ask("abort", 25)
    decode.ask("abort", 25)
    assert decode.ask("await_released", 2) == [5, 9]
    clear([prefill], [decode], 25)


def test_a_failed_write_fails_the_room_and_frees_nothing(own_pair, flavour):
    """After an engine's error whether it writes on is not known: stock SGLang never acknowledges
    then, and with NIXL it does all the same."""
    prefill, decode = own_pair
    prefill.ask("fail_writes", True)
    open_room([prefill], [decode], 26)
    send([prefill], 26)
    assert decode.ask("await_status", 26, "Success") == "Failed"
    assert ("NIXL transfer encountered ERR" if flavour == "nixl" else
            "prefill says that the room failed") in decode.ask("failure", 26)
    if flavour == "nixl":
        await_metric(decode, "sglang_acks_unproven_total", 1)
    await_metric(decode, "quarantined_pages", 2)
    assert decode.ask("released") == []
    prefill.kill()
    if flavour == "mooncake":  # the end of the process is the proof that it does not
        assert decode.ask("await_released", 2) == [5, 9]
    else:  # what it has sent may still wait in a socket
        await_metric(decode, "sglang_endpoints_lost_total", 1)
        assert decode.ask("released") == []


# --- restarts ---


def test_a_killed_prefill_fails_its_rooms_and_the_next_one_serves(peers, registry, flavour, sglang):
    [prefill], [decode] = start_prefills(peers, registry), start_decodes(peers, registry)
    whole_room([prefill], [decode], 1)
    prefill.ask("hold_writes")
    open_room([prefill], [decode], 2)
    send([prefill], 2)
    prefill.ask("await_held")
    prefill.kill()
    assert decode.ask("await_status", 2, "Success") == "Failed"
    assert "lost" in decode.ask("failure", 2)
    if flavour == "mooncake":
        assert decode.ask("await_released", 2) == [5, 9], "its process has ended"
    decode.ask("clear", 2)
    [prefill] = start_prefills(peers, registry)
    whole_room([prefill], [decode], 3, targets=(7, 11), slot=4)
    if flavour == "nixl":
        assert decode.ask("released") == [], "nothing is known of its writes"


def test_a_killed_decode_leaves_prefill_serving_the_next_one(peers, registry, sglang):
    [prefill], [decode] = start_prefills(peers, registry), start_decodes(peers, registry)
    open_room([prefill], [decode], 1)
    decode.kill()
    [decode] = start_decodes(peers, registry)
    whole_room([prefill], [decode], 2)


def test_a_room_waits_for_a_prefill_that_registers_later(peers, registry, sglang):
    decode = peers.kvferry_decode(f"127.0.0.1:{registry}", patience_ms=60_000)
    decode.ask("open_receiver", 1)
    decode.ask("send_metadata", 1, [5, 9], 3, 0)
    [prefill] = start_prefills(peers, registry)
    prefill.ask("open_sender", 1)
    assert prefill.ask("await_status", 1, "WaitingForInput") == "WaitingForInput"
    send([prefill], 1)
    assert decode.ask("await_status", 1, "Success") == "Success"


def test_a_room_of_no_prefill_fails_with_what_the_registry_says(peers, registry, sglang):
    [decode] = start_decodes(peers, registry)
    decode.ask("open_receiver", 1)
    assert decode.ask("await_status", 1, "Success") == "Failed"
    assert "not fully registered" in decode.ask("failure", 1)


# --- what should not be ---


def test_a_room_number_comes_again_when_its_last_life_is_over(pair):
    prefill, decode = pair
    for token in (1, 2):
        whole_room([prefill], [decode], 31, token=token)
    prefill.ask("hold_writes")
    open_room([prefill], [decode], 31)
    send([prefill], 31)
    prefill.ask("await_held")
    decode.ask("abort", 31)
    decode.ask("clear", 31)
    decode.ask("open_receiver", 31)
    decode.ask("send_metadata", 31, [7], 4, 0)
    assert decode.ask("await_status", 31, "Success") == "Failed"
    assert "an earlier life of this room" in decode.ask("failure", 31)
    assert decode.ask("await_released", 1) == [7]
    prefill.ask("let_writes_go")
    assert decode.ask("await_released", 3) == [7, 5, 9]
    prefill.ask("await_concluded", 31)
    clear([prefill], [decode], 31)
    whole_room([prefill], [decode], 31, token=3)


def test_room_zero_is_refused(pair):
    _, decode = pair
    decode.ask("open_receiver", 0)
    decode.ask("send_metadata", 0, [7], 4, 0)
    assert decode.ask("await_status", 0, "Success") == "Failed"
    assert "SGLang's are 1 to" in decode.ask("failure", 0)
    decode.ask("clear", 0)


def test_what_strangers_say_changes_nothing(pair, flavour):
    prefill, decode = pair
    tag = ["KV_STATUS"] if flavour == "nixl" else []
    prefill.ask("hold_writes")
    open_room([prefill], [decode], 41)
    send([prefill], 41)
    prefill.ask("await_held")
    refused = decode.ask("metric", "sglang_statuses_refused_total")
    for frames in ([*tag, "41", "4", "7"], [*tag, "42", "4", "0"], [*tag, "41", "2", "0"], ["x"],
                   [*tag, "41"],
                   ["ABORT_ACK", "41", "0", "1"], ["ABORT_ACK", "41"], ["ABORT_ACK"],
                   ["AUX_DATA", "41", "6", "9", "\0\0\0\x40", "x" * 64],
                   ["AUX_DATA", "41", "60", "3", "\0\0\0\x40", "x" * 64],
                   ["AUX_DATA", "41", "0", "3", "\xff\xff\xff\xff", "x"],
                   ["STAGING_REQ", "41", "0", "1", "s", "0"],
                   ["CHUNK_READY", "41", "0", "0", "1", "s", "0"], ["", "", ""]):
        say(prefill, decode, *frames)
    await_metric(decode, "sglang_statuses_refused_total", refused + 3)
    decode.ask("abort", 41)
    say(prefill, decode, "ABORT_ACK", "41", "0", "123456")
    say(prefill, decode, "ABORT_ACK", "41", "9", "1")
    await_metric(decode, "sglang_acks_refused_total", 4)
    assert decode.ask("released") == []
    prefill.ask("let_writes_go")
    assert decode.ask("await_released", 2) == [5, 9]
    clear([prefill], [decode], 41)
    whole_room([prefill], [decode], 43)
