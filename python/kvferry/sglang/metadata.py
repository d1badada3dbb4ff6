"""SGLang's metadata rows, carried as kvferry's aux data.

SGLang hands the first token, its log-probabilities and the room number over in one row of each of
about a dozen host arrays (MetadataBuffers). They travel in one item of a region of the plug-in's own:

    [0, 64)     kvferry's aux record: first token, room, binding, CRC; written and checked by the core
    [64, 72)    number of bytes that follow and their CRC-32, little endian
    [72, ...)   the row of each of SGLang's arrays, in its order

and are copied between SGLang's arrays and that item where a chunk is given and where a success is
read, on the scheduler's thread. So the core needs no change: aux data is already what it sends last,
from exactly one writer, checks against the room and its binding, and counts towards Success. As state
regions the arrays would have to share their slot numbers with SGLang's own state, and nothing would
check them.

The slots are the plug-in's too, not SGLang's row numbers: SGLang gives a row to the next request as
soon as one failed on prefill, while a copy of it may still be under way. A slot is used again when
kvferry has given it back.
"""

import ctypes
import itertools
import struct
import zlib
from collections.abc import Sequence

import kvferry

_HEADER = struct.Struct("<II")  # bytes, CRC-32
_ROWS_AT = kvferry.AUX_RECORD_BYTES + _HEADER.size
_ALIGNMENT = 64


class MetadataError(Exception):
    """A row that is not what prefill wrote."""


class MetadataRows:
    """The aux region of one rank. Threads: the scheduler's only."""

    def __init__(self, pointers: Sequence[int], row_bytes: Sequence[int],
                 array_bytes: Sequence[int]) -> None:
        """As KVArgs.aux_data_ptrs, aux_item_lens and aux_data_lens. Raises kvferry.KvferryError
        when the host has no memory for it."""
        if not pointers:
            raise ValueError("SGLang gave no metadata arrays")
        ends = list(itertools.accumulate(row_bytes))
        # Of each array: where its row lies among the rows, its address, bytes of a row.
        self._arrays = tuple(zip([0, *ends[:-1]], pointers, row_bytes, strict=True))
        self._bytes = ends[-1]
        rows = min((total // row for row, total in zip(row_bytes, array_bytes, strict=True)),
                   default=0)
        # Twice the rows: those of failed requests may still be kvferry's when SGLang reuses a row.
        self.slots = max(2 * rows, 1)
        self._item_bytes = -(-(_ROWS_AT + self._bytes) // _ALIGNMENT) * _ALIGNMENT
        self._pool = kvferry.SharedPool(self.slots * self._item_bytes)
        self._free = list(range(self.slots - 1, -1, -1))
        memory = memoryview(self._pool)
        begins = range(kvferry.AUX_RECORD_BYTES, self.slots * self._item_bytes, self._item_bytes)
        self._headers = [memory[at:at + _HEADER.size] for at in begins]
        self._rows = [memory[at + _HEADER.size:][:self._bytes] for at in begins]

    def region(self) -> kvferry.Region:
        return self._pool.region(kvferry.RegionKind.Aux, 0, offset=0, item_bytes=self._item_bytes,
                                 item_count=self.slots)

    def take(self) -> int | None:
        """Returns a slot, None when all are in use."""
        return self._free.pop() if self._free else None

    def give_back(self, slot: int) -> None:
        self._free.append(slot)

    @property
    def in_use(self) -> int:
        return self.slots - len(self._free)

    def record(self, row: int) -> kvferry.AuxRecord:
        """Returns the record for KvManager.write_aux(): the first array is output_ids, whose first
        element is the token that prefill sampled."""
        _, pointer, length = self._arrays[0]
        token = ctypes.c_int32.from_address(pointer + row * length).value if length >= 4 else -1
        return kvferry.AuxRecord(first_token=token)

    def write(self, slot: int, row: int) -> None:
        """Copies SGLang's row into a slot. After write_aux(), which clears what follows its record."""
        rows = self._address(slot)
        for offset, pointer, length in self._arrays:
            ctypes.memmove(rows + offset, pointer + row * length, length)
        _HEADER.pack_into(self._headers[slot], 0, self._bytes, zlib.crc32(self._rows[slot]))

    def read(self, slot: int, row: int) -> None:
        """Copies a slot into SGLang's row. Raises MetadataError, and then leaves the row alone. After
        Success, when nobody writes to the slot any more."""
        length, digest = _HEADER.unpack(self._headers[slot])
        if length != self._bytes:
            raise MetadataError(f"prefill's metadata row has {length} bytes, this rank's has "
                                f"{self._bytes}: do both servers have the same metadata flags?")
        if zlib.crc32(self._rows[slot]) != digest:
            raise MetadataError("the metadata row's checksum is wrong")
        rows = self._address(slot)
        for offset, pointer, size in self._arrays:
            ctypes.memmove(pointer + row * size, rows + offset, size)

    def _address(self, slot: int) -> int:
        """Of the slot's copy of SGLang's rows."""
        return self._pool.base + slot * self._item_bytes + _ROWS_AT
