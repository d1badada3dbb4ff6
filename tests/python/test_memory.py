"""What may be registered, and who keeps it alive."""

import gc
import mmap
import weakref

import numpy
import pytest

import kvferry
import ranks
from kvferry import MemoryKind, RegionKind


def region(memory, **changed):
    """A key region of 16-byte items."""
    return kvferry.Region(RegionKind.Key, 0, memory, **{"item_bytes": 16} | changed)


def manager_of(regions, role=kvferry.Role.Decode, **options):
    """A manager with these regions."""
    return kvferry.KvManager(ranks.kv_args(role, regions), ranks.OPTIONS | options)


def test_lenders():
    array = numpy.zeros((4, 16), "u1")
    assert region(array).base == array.ctypes.data
    assert region(array).item_count == 4
    assert region((array.ctypes.data, 64)).base == array.ctypes.data
    assert region(ranks.NumpyTensor(array)).base == array.ctypes.data
    assert region(bytearray(40)).item_count == 2  # As many as fit.
    assert region(memoryview(bytearray(64))[16:]).item_count == 3
    with mmap.mmap(-1, 4096) as mapping:
        mapped = region(mapping)
        assert mapped.item_count == 256
        with pytest.raises(BufferError):
            mapping.close()
        del mapped
    assert region(array, item_count=2).item_count == 2
    assert region(array).memory_kind == MemoryKind.Host
    assert not region(array).readonly
    assert region(bytes(16)).readonly


def test_refused_memory():
    with pytest.raises(ValueError, match="5 items of 16 bytes, and the memory has 64 bytes"):
        region(bytearray(64), item_count=5)
    with pytest.raises(ValueError, match="1 items of 16 bytes, and the memory has 8 bytes"):
        region(bytearray(8))
    with pytest.raises(ValueError, match="item_bytes is 0"):
        region(bytearray(8), item_bytes=0)
    with pytest.raises(ValueError, match="memory: it has no bytes"):
        region(bytearray())
    with pytest.raises(ValueError, match="memory: the pointer is 0"):
        region((0, 64))
    with pytest.raises(ValueError, match=r"memory: a tuple is \(pointer, bytes\), not 3 values"):
        region((1, 2, 3))
    with pytest.raises(ValueError, match="memory pointer: -1 is not from 0 to"):
        region((-1, 64))
    with pytest.raises(ValueError, match="memory: the buffer is not contiguous"):
        region(numpy.zeros((8, 32), "u1")[:, ::2])
    with pytest.raises(ValueError, match="memory: the array is not contiguous"):
        region(ranks.NumpyTensor(numpy.zeros((8, 32), "u1").T))
    with pytest.raises(TypeError, match="memory: int is neither"):
        region(5)
    with pytest.raises(TypeError, match="incompatible function arguments"):
        region(None)


def test_dlpack_that_raises():
    class Broken:
        def __dlpack__(self, **_):
            raise RuntimeError("no")

        def __dlpack_device__(self):
            return (1, 0)

    with pytest.raises(ValueError, match="Broken has __dlpack__ and gives no array through it"):
        region(Broken())


def test_device_memory_is_refused_with_what_can_move_it():
    memory = ranks.Memory()
    memory.lenders[1] = ranks.NumpyTensor(memory.lenders[1], device=(2, 0))
    regions = memory.regions()
    assert [r.memory_kind for r in regions[:2]] == [MemoryKind.Host, MemoryKind.Device]
    with pytest.raises(kvferry.KvferryError, match="region 1 is device memory, which the tcp "
                       "transport can't move; it moves host memory") as caught:
        manager_of(regions)
    assert caught.value.failure.code == kvferry.FailureCode.InvalidArgument
    # Pinned host memory of a device's library is host memory.
    memory.lenders[1] = ranks.NumpyTensor(memory.lenders[1].array, device=(3, 0))
    manager_of(memory.regions()).stop()


def test_readonly_memory_is_for_prefill_only():
    memory = ranks.Memory()
    memory.lenders[0] = bytes(memory.lenders[0])
    with pytest.raises(ValueError, match=r"regions\[0\] \(key\) is read-only memory, and a decode"):
        manager_of(memory.regions())
    manager_of(memory.regions(), kvferry.Role.Prefill).stop()
    memory.aux = bytes(memory.aux)
    with pytest.raises(ValueError, match=r"regions\[4\] \(aux\) is read-only memory, and a prefill"):
        manager_of(memory.regions(), kvferry.Role.Prefill)


def test_manager_keeps_memory_and_handles_keep_the_manager():
    memory = ranks.Memory("bytearray")
    lender = memory.lenders[0]
    made = manager_of(memory.regions(), kvferry.Role.Prefill)
    del memory
    gc.collect()
    with pytest.raises(BufferError):
        lender.append(0)
    sender = kvferry.KvSender(made, 1, 1)
    del made
    gc.collect()
    with pytest.raises(BufferError):
        lender.append(0)
    sender.init(1)  # Its manager still works.
    assert sender.poll() == kvferry.KvPoll.Bootstrapping
    del sender
    gc.collect()
    lender.append(0)  # Nobody holds it any more.


def test_array_lives_as_long_as_the_manager():
    memory = ranks.Memory()
    gone = weakref.ref(memory.lenders[0])
    made = manager_of(memory.regions())
    del memory
    gc.collect()
    assert gone() is not None
    copy = made.args()
    assert [r.kind for r in copy.regions] == [0, 0, 1, 1, 3]
    assert copy.instance == "decode" and copy.engine_epoch != 0
    del made
    gc.collect()
    assert gone() is not None  # The copy's regions hold it, too.
    del copy
    gc.collect()
    assert gone() is None


def test_pool():
    pool = kvferry.SharedPool(100_000)
    assert pool.bytes == len(pool) == len(memoryview(pool)) >= 100_000
    array = numpy.frombuffer(pool, "u1")
    assert array.ctypes.data == pool.base and array.flags.writeable
    part = pool.region(RegionKind.Key, 3, offset=4096, item_bytes=64, item_count=8)
    assert (part.base, part.memory_fd, part.memory_fd_offset) == (pool.base + 4096, pool.fd, 4096)
    assert (part.layer, part.item_bytes, part.item_count) == (3, 64, 8)
    assert region(pool).memory_fd == pool.fd
    with pytest.raises(ValueError, match="2 items of 65536 bytes from offset 1 on do not lie"):
        pool.region(RegionKind.Key, 0, offset=1, item_bytes=65_536, item_count=2)
    with pytest.raises(ValueError, match="from offset 99999999 on do not lie"):
        pool.region(RegionKind.Key, 0, offset=99_999_999, item_bytes=1, item_count=1)
    with pytest.raises(kvferry.KvferryError, match="shared pool: 0 bytes is not from 1"):
        kvferry.SharedPool(0)
    base = pool.base
    del pool, array
    gc.collect()
    assert part.base == base + 4096
