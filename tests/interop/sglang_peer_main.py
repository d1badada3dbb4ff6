#!/usr/bin/env python3
"""One rank of real SGLang as a process, told what to do by lines of JSON.

    .cache/venv-peer-sglang/bin/python tests/interop/sglang_peer_main.py ROLE PORT TP_SIZE TP_RANK \
        [SETTINGS]

PORT is that of a bootstrap server on 127.0.0.1, which this process does not start. ROLE is prefill,
decode, or mapping (PORT and what follows are not looked at). SETTINGS are PAGES, AUX_SLOTS, BACKEND
and ENGINE of sglang_rank.py as a JSON object, where others are wanted. Each line of input is a
command with its arguments; the answer is a line of output: {"value": ...} or {"error": text}.
"""

import hmac
import json
import os
import sys
import types
from typing import Any

import nixl_gate
import sglang_rank
import vm_engine

TOTAL_HEADS = 8


class Rank:
    def __init__(self, role: str, port: int, tp_size: int, tp_rank: int) -> None:
        import numpy
        self.numpy, self.role, self.address = numpy, role, f"127.0.0.1:{port}"
        self.module = sglang_rank.load(sglang_rank.BACKEND, port, attn_tp_size=tp_size,
                                       attn_tp_rank=tp_rank)
        nixl = sglang_rank.BACKEND == "nixl"
        self.engine = vm_engine.install() if sglang_rank.ENGINE == "vm" and not nixl else None
        # Buffers are of the size that the rank's share of the heads needs.
        item_bytes = sglang_rank.ITEM_BYTES * TOTAL_HEADS // tp_size
        self.buffers = [numpy.zeros(sglang_rank.PAGES * item_bytes, numpy.uint8)
                        for _ in range(2 * sglang_rank.LAYERS)]
        self.item_bytes = item_bytes
        arguments = sglang_rank.kv_args(
            tp_rank, kv_data_ptrs=[each.ctypes.data for each in self.buffers],
            kv_data_lens=[each.nbytes for each in self.buffers],
            kv_item_lens=[item_bytes] * len(self.buffers), total_kv_head_num=TOTAL_HEADS,
            kv_head_num=TOTAL_HEADS // tp_size)
        self.aux = arguments.memory[1]
        self.manager = sglang_rank.manager(self.module, sglang_rank.BACKEND, role, arguments)
        if nixl and role == "prefill":
            self.engine = nixl_gate.NixlGate(self.manager)
        self.handles: dict[int, Any] = {}

    def part(self, name: str) -> Any:
        return sglang_rank.part(self.module, sglang_rank.BACKEND, name)

    def pages(self, named: list[int] | None = None) -> Any:
        return self.numpy.array([0, 1, 2] if named is None else named, dtype=self.numpy.int32)

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

    def abort(self, room: int, _reason: str = "") -> None:
        self.handles[room].abort()

    # --- prefill ---

    def open_sender(self, room: int) -> None:
        self.handles[room] = self.part("Sender")(self.manager, self.address, room)

    def send(self, room: int) -> None:
        self.handles[room].init(3, 0)
        self.handles[room].send(self.pages())

    def fill(self, seed: int) -> None:
        """Other bytes in every page of every rank."""
        random = self.numpy.random.default_rng([seed, self.manager.attn_tp_rank])
        for buffer in self.buffers:
            buffer[:] = random.integers(0, 256, buffer.size, self.numpy.uint8)

    def bytes(self, page: int) -> list[str]:
        return [buffer[page * self.item_bytes:(page + 1) * self.item_bytes].tobytes().hex()
                for buffer in self.buffers]

    def init(self, room: int, page_count: int, slot: int, token: int) -> None:
        """As SGLang's scheduler does when the prompt is computed: aux first."""
        for buffer, kind, value in ((0, "int32", token), (1, "int32", 8), (2, "float32", -0.5),
                                    (-1, "uint64", room)):
            size = sglang_rank.AUX_BYTES[buffer]
            self.aux[buffer][slot * size:(slot + 1) * size].view(kind)[0] = value
        self.handles[room].init(page_count, slot)

    def send_pages(self, room: int, pages: list[int]) -> None:
        self.handles[room].send(self.pages(pages))

    def prefix_tokens(self, room: int) -> int:
        return self.handles[room].pop_decode_prefix_len()

    def clear_sender(self, room: int) -> None:
        """As SGLang's scheduler leaves a request."""
        from sglang.srt.disaggregation.base.conn import KVPoll
        sender = self.handles.pop(room)
        if sender.poll() == KVPoll.Failed:
            try:
                sender.failure_exception()
            except Exception:  # pylint: disable=broad-except
                pass  # it has no other way to forget the reason
        sender.clear()

    def await_concluded(self, room: int) -> None:
        """Until SGLang's worker is through with a room. It acknowledges an abort before, and what it
        says of the room then holds for a next one of that number."""
        sglang_rank.wait_for(f"the worker's end of room {room}",
                             lambda: room not in self.manager.transfer_infos)

    def hold_writes(self) -> None:
        self.engine.open.clear()

    def await_held(self) -> None:
        sglang_rank.wait_for("a write", lambda: self.engine.held)

    def let_writes_go(self) -> None:
        self.engine.open.set()

    def fail_writes(self, fails: bool) -> None:
        self.engine.fails = fails

    def dead_threads(self) -> int:
        """Of those that a manager needs; waits until there is one."""
        sglang_rank.wait_for("the end of a thread", lambda: any(
            not each.is_alive() for each in self.manager._worker_threads))
        return sum(not each.is_alive() for each in self.manager._worker_threads)

    def remembered_rooms(self) -> int:
        return len(self.manager.transfer_infos)

    def destinations(self, room: int) -> int:
        return len(self.manager.transfer_infos[room])

    def register_dp_rank(self, room: int) -> None:
        self.handles[room]._register_prefill_dp_rank()

    # --- decode ---

    def topology(self) -> dict[str, Any] | None:
        if not self.manager.try_ensure_parallel_info(self.address):
            return None
        return vars(self.manager.prefill_info_table[self.address])

    def await_topology(self) -> bool:
        return bool(sglang_rank.wait_for("a complete server", self.topology))

    def open_receiver(self, room: int) -> list[dict[str, Any]]:
        """The prefill ranks that it found."""
        self.handles[room] = self.part("Receiver")(self.manager, self.address, room)
        self.handles[room].init(0)
        return self.handles[room].bootstrap_infos

    def send_metadata(self, room: int, pages: list[int] | None = None, aux: int = 0,
                      prefix_tokens: int = 0) -> None:
        self.aux[-1][aux * sglang_rank.AUX_BYTES[-1]:][:8] = 0  # as a slot is given out
        self.handles[room].send_metadata(self.pages(pages), aux, None, prefix_tokens)

    def arm(self, room: int) -> int:
        """As abort() does before it says so; the generation."""
        return self.manager.register_deferred_abort_room(room)

    def release_is_safe(self, room: int) -> bool:
        """Whether every prefill rank has acknowledged the abort: what the pages wait for."""
        receiver = self.handles[room]
        return self.manager.is_abort_release_safe(room, len(receiver.bootstrap_infos))

    def await_release(self, room: int) -> None:
        sglang_rank.wait_for(f"release of room {room}", lambda: self.release_is_safe(room))

    def failure(self, room: int) -> str | None:
        with self.manager.failure_lock:
            return self.manager.failure_records.get(room)

    def clear(self, room: int) -> None:
        self.handles.pop(room).clear()
        self.manager.clear_deferred_abort_state(room)

    def clear_memory(self) -> None:
        for buffer in (*self.buffers, *self.aux):
            buffer[:] = 0

    def digests(self, pages: list[int]) -> list[str]:
        """Of these pages of each KV buffer."""
        return [hmac.new(b"", b"".join(
            buffer[page * self.item_bytes:(page + 1) * self.item_bytes].tobytes()
            for page in pages), "sha256").hexdigest() for buffer in self.buffers]

    def written_pages(self) -> list[int]:
        """Where a byte is not 0."""
        return [page for page in range(sglang_rank.PAGES) if any(
            buffer[page * self.item_bytes:(page + 1) * self.item_bytes].any()
            for buffer in self.buffers)]

    def aux_of(self, slot: int) -> dict[str, int]:
        """What SGLang's decode reads of a slot of MetadataBuffers."""
        def first(buffer: int, kind: str) -> int:
            size = sglang_rank.AUX_BYTES[buffer]
            return self.aux[buffer][slot * size:(slot + 1) * size].view(kind)[0].item()
        return {"token": first(0, "int32"), "cached": first(1, "int32"),
                "logprob": first(2, "float32"), "room": first(-1, "uint64")}

    def say(self, port: int, frames: list[str]) -> None:
        """Any message to a port, on a connection of its own. frames: Latin-1."""
        import zmq
        with zmq.Context() as context, context.socket(zmq.PUSH) as push:
            push.setsockopt(zmq.LINGER, 2000)
            push.connect(f"tcp://127.0.0.1:{port}")
            push.send_multipart([frame.encode("latin-1") for frame in frames])

    def registration(self) -> list[str]:
        """What this rank says first to each prefill rank; frames as for say()."""
        return [frame.decode("latin-1")
                for frame in self.manager.build_receiver_registration_message()]

    def query_dp_ranks(self, rooms: list[int]) -> dict[str, int]:
        return self.part("Receiver").query_prefill_dp_ranks(self.address, rooms)


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
    for name, value in json.loads(sys.argv[5] if len(sys.argv) > 5 else "{}").items():
        setattr(sglang_rank, name, value)
    # Transfer libraries log to the standard output, which is for answers alone.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    target = Mapping() if role == "mapping" else Rank(role, port, tp_size, tp_rank)
    print(json.dumps({"value": "ready"}), file=answers, flush=True)
    for line in sys.stdin:
        verb, *arguments = json.loads(line)
        try:
            answer = {"value": getattr(target, verb)(*arguments)}
        except Exception as error:  # pylint: disable=broad-except
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=answers, flush=True)
    sglang_rank.leave()


if __name__ == "__main__":
    main()
