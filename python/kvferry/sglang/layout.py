"""SGLang's KVArgs as kvferry's: which memory a rank registers, and what is refused.

KV pools of multi-head attention are arrays of [token][head][dim], first those of K, then those of V.
How many heads a row has is not told to a decode rank, and need not be: all that matters is which bytes
of a token's row a rank holds. So here a "head" is a unit of one byte (more, when a row of the whole
model has over 65,536), and rank r of n holds the r-th n-th of the row. With that kvferry moves pieces
of rows between unequal tensor-parallel sizes, and whole pages between equal ones.

Every other pool (MLA, whose ranks hold the same, and pools with K and V of unequal size) is moved in
whole pages between ranks of the same number, so both sides need the same tensor-parallel size.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import kvferry

MAX_UNITS = 65_536  # kvferry's most heads
HOST_DEVICES = ("cpu",)


class Refused(Exception):
    """SGLang's configuration is not one that this backend carries; the text says what to change."""


@dataclass(frozen=True)
class Rank:
    """A rank's place, as SGLang's bootstrap registry numbers it."""

    tp_rank: int
    tp_size: int
    dp_rank: int
    dp_size: int


@dataclass(frozen=True)
class _Heads:
    unit_bytes: int
    per_rank: int


def page_regions(arguments: Any) -> list[tuple[int, int, int]]:
    """Returns (position, pointer, item bytes) of each KV buffer that this rank has."""
    return [(i, pointer, item) for i, (pointer, item) in
            enumerate(zip(arguments.kv_data_ptrs, arguments.kv_item_lens, strict=True)) if item > 0]


def splits_rows(arguments: Any, is_mla: bool, tp_size: int) -> bool:
    """Whether pieces of pages can go to ranks of another tensor-parallel size."""
    return _heads(arguments, is_mla, tp_size) is not None


def _heads(arguments: Any, is_mla: bool, tp_size: int) -> _Heads | None:
    """How rows are cut, None for pools that move in whole pages."""
    items = list(arguments.kv_item_lens)
    if is_mla or getattr(arguments, "is_hybrid_mla_backend", False) or len(items) % 2 != 0:
        return None
    if not items or len(set(items)) != 1 or items[0] % arguments.page_size != 0:
        return None
    row = items[0] // arguments.page_size
    unit = 1
    while row * tp_size > MAX_UNITS * unit:
        unit *= 2
    return _Heads(unit, row // unit) if row > 0 and row % unit == 0 else None


def fingerprint(arguments: Any, model: str) -> str:
    """What must be equal on both sides beyond sizes; in words, since a mismatch shows both."""
    states = ",".join(str(getattr(each, "value", each)) for each in arguments.state_types)
    parts = {"model": model, "kv_cache_dtype": arguments.kv_cache_dtype_str,
             "kv_layout": arguments.kv_layout, "draft_buffers": arguments.num_draft_entries,
             "state": states, "swa_layout": getattr(arguments, "swa_kv_cache_layout", None),
             "metadata_rows": ",".join(str(each) for each in arguments.aux_item_lens)}
    return "; ".join(f"{name}={each}" for name, each in parts.items() if each not in (None, "", 0))


def check(arguments: Any, parallel: Any, policy: str) -> None:
    """Raises Refused for the first thing that this backend does not carry.

    parallel: SGLang's get_parallel(). policy: its decode allocation policy.
    """
    state_tensors = [each for each in arguments.state_data_ptrs if each]
    wrong = {
        "pipeline parallelism (--pp-size over 1)": parallel.pp_size > 1,
        "context parallelism (--attn-cp-size over 1)": parallel.attn_cp_size > 1,
        "decode context parallelism (--dcp-size over 1)": parallel.attn_dcp_size > 1,
        "KV cache sharding (--enable-kv-cache-sharding)": parallel.enable_kv_cache_sharding,
        "DSA cache layer split": parallel.enable_dsa_cache_layer_split,
        "--disaggregation-decode-allocation-policy " + policy: policy != "early",
        "more than one state component in a model (" + ", ".join(
            str(getattr(each, "value", each)) for each in arguments.state_types) + ")":
            len(state_tensors) > 1,
        "a KV pool without buffers": not page_regions(arguments),
    }
    for what, applies in wrong.items():
        if applies:
            raise Refused(f"this backend does not carry {what}: change that, or choose another "
                          "--disaggregation-transfer-backend")


def _regions(arguments: Any, split: bool, device: str) -> list[kvferry.Region]:
    kinds = kvferry.RegionKind
    memory = kvferry.MemoryKind.Host if device in HOST_DEVICES else kvferry.MemoryKind.Device
    buffers = page_regions(arguments)
    # A page number names an item in every pool.
    pages = min(arguments.kv_data_lens[i] // item for i, _, item in buffers)
    half = len(arguments.kv_item_lens) // 2
    regions = []
    for i, pointer, item in buffers:
        kind = kinds.Other if not split else kinds.Key if i < half else kinds.Value
        regions.append(kvferry.Region(kind, i % half if split else i, (pointer, pages * item),
                                      item_bytes=item, item_count=pages, memory_kind=memory))
    for pointers, lengths, items in zip(arguments.state_data_ptrs, arguments.state_data_lens,
                                        arguments.state_item_lens, strict=True):
        for pointer, length, item in zip(pointers, lengths, items, strict=True):
            if item == 0:
                continue
            regions.append(kvferry.Region(kinds.State, 0, (pointer, length // item * item),
                                          item_bytes=item, memory_kind=memory))
    return regions


def kv_args(arguments: Any, role: kvferry.Role, rank: Rank, *, is_mla: bool, device: str,
            engine_epoch: int, instance: str, model: str,
            aux: Sequence[kvferry.Region]) -> kvferry.KvArgs:
    """Returns what kvferry is told of this rank. Memory stays SGLang's, for the manager's life."""
    heads = _heads(arguments, is_mla, rank.tp_size)
    split = heads is not None
    per_rank = heads.per_rank if heads is not None else 1
    buffers = len(arguments.kv_item_lens)
    layers = buffers // 2 if split else buffers
    return kvferry.KvArgs(
        role, instance=instance, engine_epoch=engine_epoch,
        rank=kvferry.RankCoordinates(tp_rank=rank.tp_rank, tp_size=rank.tp_size,
                                     dp_rank=rank.dp_rank, dp_size=rank.dp_size),
        model_fingerprint=fingerprint(arguments, model), page_size_tokens=arguments.page_size,
        total_layers=layers, total_kv_heads=per_rank * rank.tp_size,
        head_dim=heads.unit_bytes if heads is not None else 1, dtype=kvferry.DType.U8,
        layers=(0, layers), heads=(rank.tp_rank * per_rank, (rank.tp_rank + 1) * per_rank),
        regions=[*_regions(arguments, split, device), *aux])


def state_slots(state_indices: Sequence[Any] | None) -> Any:
    """SGLang's list of index arrays, one per state component, as kvferry's slots."""
    filled = [each for each in state_indices or () if each is not None and len(each) > 0]
    return filled[0] if filled else ()
