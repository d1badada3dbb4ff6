#!/usr/bin/env python3
"""One rank of real SGLang as a process, told what to do by lines of JSON.

    .cache/venv-peer-sglang/bin/python tests/interop/sglang_peer_main.py ROLE PORT TP_SIZE TP_RANK

PORT is that of a bootstrap server on 127.0.0.1, which this process does not start. ROLE is prefill,
decode, or mapping (PORT and what follows are not looked at). Each line of input is a command with
its arguments; the answer is a line of output: {"value": ...} or {"error": text}.
"""

import json
import sys
import types
from typing import Any

import sglang_rank

TOTAL_HEADS = 8


class Rank:
    def __init__(self, role: str, port: int, tp_size: int, tp_rank: int) -> None:
        import numpy
        self.numpy, self.role, self.address = numpy, role, f"127.0.0.1:{port}"
        self.module = sglang_rank.load("mooncake", port, attn_tp_size=tp_size, attn_tp_rank=tp_rank)
        # Buffers are of the size that the rank's share of the heads needs.
        item_bytes = sglang_rank.ITEM_BYTES * TOTAL_HEADS // tp_size
        self.buffers = [numpy.zeros(sglang_rank.PAGES * item_bytes, numpy.uint8)
                        for _ in range(2 * sglang_rank.LAYERS)]
        self.manager = sglang_rank.manager(self.module, "mooncake", role, sglang_rank.kv_args(
            tp_rank, kv_data_ptrs=[each.ctypes.data for each in self.buffers],
            kv_data_lens=[each.nbytes for each in self.buffers],
            kv_item_lens=[item_bytes] * len(self.buffers), total_kv_head_num=TOTAL_HEADS,
            kv_head_num=TOTAL_HEADS // tp_size))
        self.handles: dict[int, Any] = {}

    def pages(self) -> Any:
        return self.numpy.arange(3, dtype=self.numpy.int32)

    # --- commands of both ---

    def rank_port(self) -> int:
        return self.manager.rank_port

    def await_status(self, room: int, name: str) -> str:
        from sglang.srt.disaggregation.base.conn import KVPoll
        handle = self.handles[room]
        wanted = {getattr(KVPoll, name), KVPoll.Failed, KVPoll.Success}
        sglang_rank.wait_for(f"{name} of room {room}", lambda: handle.poll() in wanted)
        last = handle.poll()
        return next(each for each in ("Failed", "Bootstrapping", "WaitingForInput", "Transferring",
                                      "Success") if getattr(KVPoll, each) == last)

    # --- prefill ---

    def open_sender(self, room: int) -> None:
        self.handles[room] = self.module.MooncakeKVSender(self.manager, self.address, room)

    def send(self, room: int) -> None:
        self.handles[room].init(3, 0)
        self.handles[room].send(self.pages())

    def register_dp_rank(self, room: int) -> None:
        self.handles[room]._register_prefill_dp_rank()

    # --- decode ---

    def topology(self) -> dict[str, Any] | None:
        if not self.manager.try_ensure_parallel_info(self.address):
            return None
        return vars(self.manager.prefill_info_table[self.address])

    def open_receiver(self, room: int) -> list[dict[str, Any]]:
        """The prefill ranks that it found."""
        self.handles[room] = self.module.MooncakeKVReceiver(self.manager, self.address, room)
        self.handles[room].init(0)
        return self.handles[room].bootstrap_infos

    def send_metadata(self, room: int) -> None:
        self.handles[room].send_metadata(self.pages(), 0)

    def query_dp_ranks(self, rooms: list[int]) -> dict[str, int]:
        return self.module.MooncakeKVReceiver.query_prefill_dp_ranks(self.address, rooms)


class Mapping:
    """SGLang's rank formulas without a manager."""

    def __init__(self) -> None:
        sglang_rank.load("mooncake", 0)
        from sglang.srt.disaggregation.common import conn
        self.conn = conn

    def mapping(self, prefill: dict[str, Any], decode: dict[str, Any]) -> dict[str, Any] | None:
        """prefill: fields of PrefillServerInfo; decode: attributes of the manager."""
        info = self.conn.PrefillServerInfo(
            dp_size=1, page_size=16, kv_cache_dtype=None, follow_bootstrap_room=True, **prefill)
        manager = types.SimpleNamespace(**decode)
        manager.kv_args = types.SimpleNamespace(engine_rank=decode["engine_rank"])
        try:
            self.conn.CommonKVManager._resolve_rank_mapping(manager, info)
        except AssertionError:
            return None
        return {name: getattr(info, name) for name in (
            "target_tp_rank", "target_tp_ranks", "target_cp_ranks", "target_pp_ranks",
            "required_dst_info_num", "required_prefill_response_num")}


def main() -> None:
    role, port, tp_size, tp_rank = sys.argv[1], *(int(each) for each in sys.argv[2:5])
    target = Mapping() if role == "mapping" else Rank(role, port, tp_size, tp_rank)
    print(json.dumps({"value": "ready"}), flush=True)
    for line in sys.stdin:
        verb, *arguments = json.loads(line)
        try:
            answer = {"value": getattr(target, verb)(*arguments)}
        except Exception as error:  # pylint: disable=broad-except
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)
    sglang_rank.leave()


if __name__ == "__main__":
    main()
