"""Bad arguments: each names what is wrong, and none takes the process with it."""

import array
import uuid

import numpy
import pytest

import kvferry
import ranks
from kvferry import KvPoll, RegionKind


@pytest.fixture
def room(pair):
    """A room of four pages with nothing granted yet."""
    return pair.open(1)


BAD_PAGES = {
    "negative": ([0, -1], ValueError, r"pages\[1\] is -1: this rank has pages 0 to 63"),
    "too large": ([64], ValueError, r"pages\[0\] is 64: this rank has pages 0 to 63"),
    "huge": ([2**80], ValueError, r"pages\[0\] is 1208925819614629174706176: this rank has"),
    "int64": (numpy.array([3, -5]), ValueError, r"pages\[1\] is -5: "),
    "uint64": (numpy.array([2**63], "u8"), ValueError, r"pages\[0\] is 9223372036854775808: "),
    "int32": (numpy.array([1, 2, 70], "i4"), ValueError, r"pages\[2\] is 70: "),
    "int8": (array.array("b", [-3]), ValueError, r"pages\[0\] is -3: "),
    "strided": (numpy.array([1, 99, 99, 2])[::2], ValueError, r"pages\[1\] is 99: "),
    "two dimensions": (numpy.zeros((2, 2), "i4"), ValueError, r"pages: one dimension of integers"),
    "floats": (numpy.zeros(2), ValueError, r"pages: one dimension of integers .* format 'd'"),
    "big endian": (numpy.zeros(2, ">i4"), ValueError, r"pages: .* format '>i'"),
    "float in a list": ([1, 2.5], TypeError, r"pages\[1\]: a whole number is needed, not float"),
    "text": ("12", TypeError, r"pages\[0\]: a whole number is needed, not str"),
    "None": (None, TypeError, "incompatible function arguments"),
    "number": (3, TypeError, r"pages: a list or a buffer of whole numbers is needed, not int"),
}


@pytest.mark.parametrize("pages, error, words", BAD_PAGES.values(), ids=BAD_PAGES.keys())
def test_bad_pages(room, pages, error, words):
    with pytest.raises(error, match=words):
        room.sender.send(pages)
    with pytest.raises(error, match=words):
        room.receiver.send_metadata(pages)
    # Refused before anything was done: the room goes on.
    assert room.sender.poll() == KvPoll.Bootstrapping
    room.fill()
    room.grant()
    room.await_grant()
    room.sender.send(room.source)
    room.await_ends()
    assert room.receiver.poll() == KvPoll.Success and room.arrived()


def test_all_kinds_of_page_lists(pair):
    kinds = ["i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8"]
    lists = [numpy.array([2 * i, 2 * i + 1], kind) for i, kind in enumerate(kinds)]
    lists += [numpy.arange(16, 20)[::2], numpy.array([22, 20])[::-1], range(24, 26),
              (numpy.int64(26), 27), array.array("I", [28, 29])]
    sender = kvferry.KvSender(pair.prefill, 5, 5)
    sender.init(2 * len(lists))
    receiver = kvferry.KvReceiver(pair.decode, 5, 5)
    receiver.init(pair.server.address(), "prefill")
    receiver.send_metadata(range(2 * len(lists)))
    ranks.await_that(pair.prefill, lambda: sender.poll() == KvPoll.WaitingForInput, "grant")
    for pages in lists:
        sender.send(pages)
    ranks.await_that(pair.prefill, lambda: sender.poll() == KvPoll.Success, "success")
    (released,) = ranks.take_released(pair.prefill, 1)
    assert list(released.pages) == [int(page) for pages in lists for page in pages]


def test_pages_named_twice_fail_the_room(room):
    with pytest.raises(kvferry.InvalidArgument, match="page 3 is named twice"):
        room.receiver.send_metadata([3, 3])
    assert room.receiver.poll() == KvPoll.Failed


def test_too_many_pages_fail_the_room(room):
    with pytest.raises(kvferry.InvalidArgument, match="a chunk of 5 pages after 0 of 4"):
        room.sender.send(range(5))
    assert room.sender.poll() == KvPoll.Failed


def test_state_slots_of_a_rank_without(room):
    with pytest.raises(ValueError, match=r"state_slots\[0\] is 0: this rank has no state slots"):
        room.sender.send([0], [0])


def test_numbers(pair, room):
    with pytest.raises(ValueError, match="room: -1 is not from 0 to 18446744073709551615"):
        kvferry.KvSender(pair.prefill, -1, 0)
    with pytest.raises(ValueError, match="room: 18446744073709551616 is not from 0"):
        kvferry.KvReceiver(pair.decode, 2**64, 0)
    with pytest.raises(TypeError, match="room: a whole number is needed, not str"):
        kvferry.KvSender(pair.prefill, "1", 0)
    with pytest.raises(TypeError, match="page_count: a whole number is needed, not float"):
        kvferry.KvSender(pair.prefill, 3, 3).init(1.0)
    with pytest.raises(ValueError, match="page_count: 4294967296 is not from 0 to 4294967295"):
        kvferry.KvSender(pair.prefill, 4, 4).init(2**32)
    with pytest.raises(kvferry.InvalidArgument, match="aux slot 16: this rank has 16"):
        kvferry.KvSender(pair.prefill, 5, 5).init(1, 16)
    with pytest.raises(ValueError, match="expected_grants is 0"):
        room.receiver.send_metadata([0], expected_grants=0)
    receiver = pair.open(6).receiver
    with pytest.raises(ValueError, match="decode_prefix_tokens 3 is no multiple of the page size"):
        receiver.send_metadata([0], decode_prefix_tokens=3)
    with pytest.raises(TypeError, match="incompatible function arguments"):
        kvferry.KvSender(None, 1, 1)


def test_bindings():
    value = 0x0123456789ABCDEF_FEDCBA9876543210
    binding = kvferry.Binding(value)
    assert (binding.high, binding.low) == (0x0123456789ABCDEF, 0xFEDCBA9876543210)
    assert int(binding) == value
    assert bytes(binding) == value.to_bytes(16, "big")
    assert str(binding) == binding.to_hex() == f"{value:032x}"
    same = [value.to_bytes(16, "big"), f"{value:032X}", uuid.UUID(int=value), binding]
    assert {kvferry.Binding(other) for other in same} == {binding}
    assert hash(kvferry.Binding(value)) == hash(binding)
    assert kvferry.Binding().is_zero() and not kvferry.Binding.random().is_zero()
    assert kvferry.Binding.random() != kvferry.Binding.random()
    assert kvferry.Binding(2**128 - 1).low == 2**64 - 1
    for bad in (-1, 2**128, -(2**130)):
        with pytest.raises(ValueError, match=rf"binding: {bad} is not from 0 to 2\*\*128 - 1"):
            kvferry.Binding(bad)
    with pytest.raises(ValueError, match="binding: 15 bytes, a binding has 16"):
        kvferry.Binding(bytes(15))
    with pytest.raises(ValueError, match="binding: 'xyz' is not 32 hexadecimal digits"):
        kvferry.Binding("xyz")
    with pytest.raises(TypeError, match="binding: .* is needed, not float"):
        kvferry.Binding(1.5)


def test_args():
    with pytest.raises(TypeError, match=r"regions\[0\]: a Region is needed, not int"):
        kvferry.KvArgs(regions=[1])
    with pytest.raises(ValueError, match=r"layers: a pair \(begin, end\) is needed"):
        kvferry.KvArgs(layers=(1, 2, 3))
    with pytest.raises(ValueError, match=r"heads\[1\]: -2 is not from 0 to 4294967295"):
        kvferry.KvArgs(heads=(0, -2))
    args = kvferry.KvArgs(rank=kvferry.RankCoordinates(tp_rank=1, tp_size=2))
    args.rank.tp_rank = 0
    assert args.rank == kvferry.RankCoordinates(tp_size=2)
    args.numerics.threads = 3
    assert args.numerics == kvferry.Numerics(threads=3)
    args.layers = [2, 5]
    assert args.layers == (2, 5)
    with pytest.raises(ValueError, match="tp_rank: -1 is not from 0 to 4294967295"):
        args.rank.tp_rank = -1
    with pytest.raises(AttributeError):
        args.regions.append(None)  # A copy, which says so.


def test_manager_refuses_what_the_library_does():
    regions = ranks.Memory().regions()
    cases = [
        ({"page_size_tokens": 0}, "page_size_tokens is 0, allowed are"),
        ({"layers": (0, 3)}, r"layers \[0, 3\) is not within the total of 2"),
        ({"head_dim": 4}, r"item_bytes is 128, page size x heads x head_dim x dtype is 64"),
        ({"rank": kvferry.RankCoordinates(tp_rank=2, tp_size=2)}, "is outside its engine"),
    ]
    for changed, words in cases:
        with pytest.raises(kvferry.KvferryError, match=words):
            kvferry.KvManager(ranks.kv_args(kvferry.Role.Decode, regions, **changed), ranks.OPTIONS)
    twice = [kvferry.Region(RegionKind.Key, 0, regions_memory, item_bytes=128)
             for regions_memory in [bytearray(128)] * 2]
    with pytest.raises(kvferry.KvferryError, match="second key region of layer 0"):
        kvferry.KvManager(ranks.kv_args(kvferry.Role.Decode, twice), ranks.OPTIONS)
