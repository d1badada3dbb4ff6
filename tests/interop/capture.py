#!/usr/bin/env python3
"""Captures the bytes of every control message from real SGLang 0.5.23, as golden samples.

    .cache/venv-peer-sglang/bin/python tests/interop/capture.py [--out FOLDER]

Rewrites FOLDER (tests/unit/dialect/golden): NAME.frames has one line of hexadecimal digits for each
frame (an empty line is an empty frame), manifest.tsv one row for each sample: name, flavour, who
listens for it, kind, origin, note. Origins:

  exchange  sent while a prefill and a decode manager of SGLang handled a room
  call      sent or encoded by SGLang's own function, which was called with values made up here,
            because the path to it needs a GPU
  by-hand   written down here from SGLang's source, because no code of 0.5.23 sends it

Each scene runs in a process of its own (SGLang keeps sizes and sockets in module state).
"""

import argparse
import json
import os
import pathlib
import socket
import subprocess
import sys
import traceback
import types
from typing import Any, Callable

import sglang_rank

HERE = pathlib.Path(__file__).resolve()
GOLDEN = sglang_rank.ROOT / "tests" / "unit" / "dialect" / "golden"
ORIGINS = ("exchange", "call", "by-hand")
ROOM = 42

Frames = list[bytes]


class Recorder:
    """Keeps every multipart message that this process sends."""

    def __init__(self) -> None:
        import zmq
        self.sent: list[Frames] = []
        original = zmq.Socket.send_multipart

        def send(socket_: Any, parts: Any, *arguments: Any, **named: Any) -> Any:
            self.sent.append([bytes(part) for part in parts])
            return original(socket_, parts, *arguments, **named)

        zmq.Socket.send_multipart = send

    def take(self, what: str, fits: Callable[[Frames], bool]) -> Frames:
        """Waits for a message that fits and takes it out."""
        frames = sglang_rank.wait_for(
            f"a message that is {what}",
            lambda: next((each for each in list(self.sent) if fits(each)), None))
        self.sent.remove(frames)
        return frames


class Samples:
    def __init__(self, flavour: str) -> None:
        self.flavour, self.rows = flavour, []
        self.kept: dict[str, Any] = {}  # lives until the process ends

    def add(self, name: str, listener: str, kind: str, origin: str, frames: Frames,
            note: str = "") -> None:
        assert origin in ORIGINS and listener in ("prefill", "decode")
        self.rows.append({"name": name, "flavour": self.flavour, "listener": listener, "kind": kind,
                          "origin": origin, "note": note, "frames": [each.hex() for each in frames]})


class Pair:
    """A prefill server and one decode rank of SGLang in this process."""

    def __init__(self, backend: str, prefill_tp: int = 1, is_mla: bool = False,
                 decode: dict[str, Any] | None = None, **settings: Any) -> None:
        import numpy
        self.numpy, self.backend = numpy, backend
        port = free_port()
        self.module = sglang_rank.load(backend, port, **settings)
        self.recorder = Recorder()
        self.parallel = sys.modules["sglang.srt.runtime_context"].get_parallel()
        self.address = f"127.0.0.1:{port}"
        self.server = sglang_rank.part(self.module, backend, "BootstrapServer")("127.0.0.1", port)
        sglang_rank.wait_for("its bootstrap server", lambda: listens(port))
        self.parallel.attn_tp_size = prefill_tp
        self.prefills = []
        for rank in range(prefill_tp):
            self.parallel.attn_tp_rank = rank
            self.prefills.append(sglang_rank.manager(
                self.module, backend, "prefill", sglang_rank.kv_args(rank), is_mla))
        self.parallel.attn_tp_size, self.parallel.attn_tp_rank = 1, 0
        self.decode = sglang_rank.manager(self.module, backend, "decode",
                                          sglang_rank.kv_args(**(decode or {})), is_mla)
        sglang_rank.wait_for("the topology",
                             lambda: self.decode.try_ensure_parallel_info(self.address))
        from sglang.srt.disaggregation.base.conn import KVPoll
        self.status = KVPoll

    def receiver(self, room: int) -> Any:
        receiver = sglang_rank.part(self.module, self.backend, "Receiver")(
            self.decode, self.address, room)
        receiver.init(0)
        return receiver

    def sender(self, room: int) -> Any:
        return sglang_rank.part(self.module, self.backend, "Sender")(
            self.prefills[0], self.address, room)

    def pages(self, *pages: int) -> Any:
        return self.numpy.array(pages, dtype=self.numpy.int32)

    def await_status(self, handle: Any, status: Any) -> None:
        sglang_rank.wait_for(f"status {status}", lambda: handle.poll() == status)

    def finish_room(self, room: int) -> None:
        """Both sides of a room, to Success."""
        sender, receiver = self.sender(room), self.receiver(room)
        receiver.send_metadata(self.pages(5, 6, 7), 3)
        self.await_status(sender, self.status.WaitingForInput)
        sender.init(3, 1)
        sender.send(self.pages(0, 1, 2))
        self.await_status(receiver, self.status.Success)


def free_port() -> int:
    with socket.socket() as any_port:
        any_port.bind(("127.0.0.1", 0))
        return any_port.getsockname()[1]


def listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
        return True
    except OSError:
        return False


def is_room(frames: Frames, count: int) -> bool:
    return frames[0].isdigit() and len(frames) == count


def tagged(tag: bytes) -> Callable[[Frames], bool]:
    return lambda frames: frames[0] == tag


def guarded(count: int, registers: bool = False) -> Callable[[Frames], bool]:
    return lambda frames: (len(frames) == count and frames[0].endswith(b"Guard")
                           and (frames[1] == b"None") == registers)


# --- Mooncake ---

def mooncake_room() -> Samples:
    samples, pair = Samples("mooncake"), Pair("mooncake")
    pair.finish_room(ROOM)
    take = pair.recorder.take
    samples.add("mooncake-registration", "prefill", "mooncake-registration", "exchange",
                take("a registration", tagged(b"None")))
    samples.add("mooncake-metadata", "prefill", "mooncake-metadata", "exchange",
                take("metadata", lambda frames: is_room(frames, 10)))
    samples.add("mooncake-success", "decode", "status", "exchange",
                take("a status", lambda frames: is_room(frames, 3)))
    receiver = pair.receiver(ROOM + 1)
    pair.sender(ROOM + 1)
    receiver.send_metadata(pair.pages(9), 0)
    receiver.abort()
    samples.add("abort-armed", "prefill", "abort", "exchange", take("ABORT", tagged(b"ABORT")))
    samples.add("abort-ack", "decode", "abort-ack", "exchange",
                take("ABORT_ACK", tagged(b"ABORT_ACK")))
    pair.receiver(ROOM + 2).abort()
    samples.add("abort-unarmed", "prefill", "abort", "exchange", take("ABORT", tagged(b"ABORT")),
                "no metadata was sent, so decode holds no pages")
    pair.sender(ROOM + 3)
    receiver = pair.receiver(ROOM + 3)
    receiver.send_metadata(pair.pages(9), 0)
    sglang_rank.wait_for("metadata", lambda: ROOM + 3 in pair.prefills[0].transfer_infos)
    pair.recorder.sent.clear()
    pair.prefills[0].conclude_failure(bootstrap_room=ROOM + 3, failure_reason="made up")
    samples.add("mooncake-failed", "decode", "status", "call",
                take("a status", lambda frames: is_room(frames, 3)),
                "conclude_failure() as after a failed write")
    return samples


def mooncake_shapes() -> Samples:
    """Metadata in its other forms, and a decode rank with state components."""
    from_layers = {"kv_layer_ids": [3, 7, 3, 7]}
    state = {
        "state_data_ptrs": [[0x7F0000001000, 0x7F0000002000], [0x7F0000003000]],
        "state_data_lens": [[4096, 4096], [8192]], "state_item_lens": [[512, 512], [1024]],
        "state_layer_ids": [[0, 1], [2]], "state_dim_per_tensor": [[0, 1], []]}
    samples = Samples("mooncake")
    pair = Pair("mooncake", decode=state | from_layers)
    receiver = pair.receiver(ROOM)
    receiver.send_metadata(pair.pages(5, 6), 0, state_indices=[[2], [8, 9, 10]])
    take = pair.recorder.take
    samples.add("mooncake-registration-state", "prefill", "mooncake-registration", "exchange",
                take("a registration", tagged(b"None")))
    samples.add("mooncake-metadata-state", "prefill", "mooncake-metadata", "exchange",
                take("metadata", lambda frames: is_room(frames, 10)))
    pair.receiver(ROOM + 1).send_metadata(pair.pages(), 3, decode_prefix_len=128)
    samples.add("mooncake-metadata-prefix-hit", "prefill", "mooncake-metadata", "exchange",
                take("metadata", lambda frames: is_room(frames, 10)), "full prefix hit")
    pair.receiver(ROOM + 2).send_metadata(pair.pages(1, 2), 3, device_kv_indices=pair.pages(30, 31))
    samples.add("mooncake-metadata-device-pages", "prefill", "mooncake-metadata", "exchange",
                take("metadata", lambda frames: is_room(frames, 10)), "host and device pages")
    return samples


def mooncake_dummy() -> Samples:
    samples = Samples("mooncake")
    pair = Pair("mooncake", prefill_tp=2, is_mla=True)
    pair.receiver(2**63 - 1).send_metadata(pair.pages(5, 6, 7), 3)
    samples.add("mooncake-metadata-dummy", "prefill", "mooncake-metadata", "exchange",
                pair.recorder.take("dummy metadata",
                                   lambda frames: is_room(frames, 10) and not frames[5]),
                "second TP rank of an MLA prefill, largest room")
    return samples


def mooncake_undeferred() -> Samples:
    os.environ["SGLANG_DISAGGREGATION_DEFERRED_DECODE_KV_RELEASE"] = "0"
    samples, pair = Samples("mooncake"), Pair("mooncake")
    pair.receiver(ROOM).abort()
    samples.add("abort-ack-undeferred", "decode", "abort-ack", "exchange",
                pair.recorder.take("ABORT_ACK", tagged(b"ABORT_ACK")),
                "deferred release is off on prefill")
    return samples


def mooncake_aux() -> Samples:
    os.environ["SGLANG_MOONCAKE_SEND_AUX_TCP"] = "1"
    samples, pair = Samples("mooncake"), Pair("mooncake")
    for number, buffer in enumerate(pair.prefills[0].kv_args.memory[1]):
        buffer[:] = number + 1
    pair.finish_room(ROOM)
    samples.add("aux-data", "decode", "aux-data", "exchange",
                pair.recorder.take("AUX_DATA", tagged(b"AUX_DATA")),
                "SGLANG_MOONCAKE_SEND_AUX_TCP")
    return samples


def mooncake_prefill_complete() -> Samples:
    samples = Samples("mooncake")
    pair = Pair("mooncake", disaggregation_decode_allocation_policy="prefill_complete")
    sender = pair.sender(ROOM)
    pair.receiver(ROOM)
    take = pair.recorder.take
    samples.add("bootstrap", "prefill", "bootstrap", "exchange",
                take("BOOTSTRAP", tagged(b"BOOTSTRAP")))
    sender.mark_prefill_complete()
    samples.add("mooncake-prefill-complete", "decode", "status", "exchange",
                take("a status", lambda frames: is_room(frames, 3)), "status 2")
    return samples


# --- staging: its kernels need a GPU, its messages do not ---

def staging(backend: str, samples: Samples, pair: Pair) -> None:
    from sglang.srt.disaggregation.common import staging_handler
    take, prefill, decode = pair.recorder.take, pair.prefills[0], pair.decode
    session = "127.0.0.1:15000" if backend == "mooncake" else decode.agent.name
    prefill.send_chunk_ready(room=ROOM, chunk_idx=1, page_start=2, num_pages=3, writer_id=session,
                             targets=[("127.0.0.1", free_port())])
    samples.add(f"{backend}-chunk-ready", "decode", "chunk-ready", "call",
                take("CHUNK_READY", tagged(b"CHUNK_READY")), "send_chunk_ready()")
    wanted = types.SimpleNamespace(is_dummy=False, dst_kv_indices=[1, 2, 3], endpoint="127.0.0.1",
                                   dst_port=free_port())
    samples.kept = {}  # closing these sockets would wait for a peer that is not there
    staging_handler.prefetch_staging_reqs(
        ROOM, {ROOM: {session: wanted}}, {"page_size": sglang_rank.PAGE_TOKENS}, 8192, set(),
        samples.kept, *([0] if backend == "mooncake" else []))
    samples.add(f"{backend}-staging-req", "decode", "staging-req", "call",
                take("STAGING_REQ", tagged(b"STAGING_REQ")), "prefetch_staging_reqs()")
    receiver = pair.receiver(ROOM + 9)
    receiver.chunk_staging_infos = [(1, 4096, 2, 8192, 3), (-1, -2, 0, -1, 3)]
    for chunk, name in enumerate(("placed", "oversized")):
        request = [b"STAGING_REQ", str(ROOM).encode(), str(chunk).encode(), b"3", session.encode()]
        staging_handler.handle_staging_req(
            request, types.SimpleNamespace(), decode.kv_args, 1, 2, None, {ROOM: receiver},
            {ROOM: receiver.bootstrap_infos})
        samples.add(f"{backend}-staging-rsp-{name}", "prefill", "staging-rsp", "call",
                    take("STAGING_RSP", tagged(b"STAGING_RSP")), "handle_staging_req()")
    staging_handler.DecodeStagingHandler._send_watermark(receiver, session, (3, 4096))
    samples.add(f"{backend}-watermark", "prefill", "watermark", "call",
                take("WATERMARK", tagged(b"WATERMARK")), "_send_watermark()")


def mooncake_staging() -> Samples:
    samples, pair = Samples("mooncake"), Pair("mooncake")
    staging("mooncake", samples, pair)
    pair.decode.enable_staging = True
    pair.decode._staging_ctx = types.SimpleNamespace(allocator=types.SimpleNamespace(
        get_base_ptr=lambda: 0x7F0000001000, get_total_size=lambda: 1 << 32))
    pair.decode.kv_buffer_tensors = {"slot_layer_ids": [0, 1]}
    samples.add("mooncake-registration-staging", "prefill", "mooncake-registration", "call",
                pair.decode.build_receiver_registration_message(),
                "build_receiver_registration_message() with a made-up ring")
    return samples


# --- NIXL ---

def nixl_room() -> Samples:
    samples, pair = Samples("nixl"), Pair("nixl")
    pair.finish_room(ROOM)
    take = pair.recorder.take
    samples.add("nixl-registration", "prefill", "nixl-registration", "exchange",
                take("a registration", guarded(25, registers=True)), "agent of NIXL 1.5.1 over UCX")
    samples.add("nixl-metadata", "prefill", "nixl-metadata", "exchange",
                take("metadata", guarded(11)))
    samples.add("nixl-success", "decode", "status", "exchange", take("KV_STATUS",
                                                                     tagged(b"KV_STATUS")))
    receiver = pair.receiver(ROOM + 1)
    pair.sender(ROOM + 1)
    receiver.send_metadata(pair.pages(9), 0)
    sglang_rank.wait_for("metadata", lambda: ROOM + 1 in pair.prefills[0].transfer_infos)
    pair.prefills[0].conclude_failure(bootstrap_room=ROOM + 1, failure_reason="made up")
    samples.add("nixl-failed", "decode", "status", "call", take("KV_STATUS", tagged(b"KV_STATUS")),
                "conclude_failure() as after a failed write")
    receiver = pair.receiver(ROOM + 2)
    receiver.send_metadata(pair.pages(9), 0)
    receiver.abort()
    samples.add("nixl-abort", "prefill", "abort", "exchange", take("ABORT", tagged(b"ABORT")))
    samples.add("nixl-abort-ack", "decode", "abort-ack", "exchange",
                take("ABORT_ACK", tagged(b"ABORT_ACK")))
    return samples


def nixl_shapes() -> Samples:
    state = {
        "state_data_ptrs": [[0x7F0000001000], [0x7F0000003000]], "state_data_lens": [[4096], [8192]],
        "state_item_lens": [[512], [1024]], "state_layer_ids": [[0], [2]],
        "state_dim_per_tensor": [[0], []], "kv_layer_ids": [3, 7, 3, 7]}
    samples, pair = Samples("nixl"), Pair("nixl")
    take = pair.recorder.take
    pair.receiver(ROOM)
    for name, value in state.items():
        setattr(pair.decode.kv_args, name, value)
    samples.add("nixl-registration-state", "prefill", "nixl-registration", "call",
                pair.decode.build_receiver_registration_message(),
                "build_receiver_registration_message() with made-up state buffers")
    receiver = pair.receiver(ROOM + 1)
    receiver.send_metadata(pair.pages(5, 6), 0, state_indices=[[2], None])
    samples.add("nixl-metadata-state", "prefill", "nixl-metadata", "exchange",
                take("metadata", guarded(11)))
    receiver = pair.receiver(ROOM + 2)
    receiver.bootstrap_infos[0]["is_dummy"] = True
    receiver.send_metadata(pair.pages(5, 6), 2)
    samples.add("nixl-metadata-dummy", "prefill", "nixl-metadata", "exchange",
                take("metadata", guarded(11)), "rank marked as a dummy")
    return samples


def nixl_staging() -> Samples:
    samples, pair = Samples("nixl"), Pair("nixl")
    staging("nixl", samples, pair)
    return samples


# --- Mori: its engine needs RDMA, so a manager is made without its constructor ---

def mori_messages() -> Samples:
    samples = Samples("mori")
    module = sglang_rank.load("mori", free_port())
    from sglang.srt.disaggregation.base.conn import KVPoll
    manager = object.__new__(module.MoriKVManager)
    manager.attn_tp_rank = manager.attn_cp_rank = manager.pp_rank = 0
    manager.pp_size = manager.attn_cp_size = 1
    for name, status, reason in (("success", KVPoll.Success, None),
                                 ("failed", KVPoll.Failed, "KV transfer exceeded SLA 5ms")):
        samples.add(f"mori-{name}", "decode", "status", "call", manager._encode_kv_status_message(
            bootstrap_room=ROOM, status=status, failure_reason=reason),
                    "_encode_kv_status_message()")
    sent: list[Frames] = []
    manager._connect_threadsafe = lambda *_, **__: types.SimpleNamespace(send_multipart=sent.append)
    manager._send_aux_data_to_endpoint("127.0.0.1", 40000, ROOM, 0, 3, bytes(range(64)))
    samples.add("mori-aux-data", "decode", "aux-data", "call", sent[0],
                "_send_aux_data_to_endpoint()")
    common = sys.modules["sglang.srt.disaggregation.common.conn"]
    samples.add("mori-abort", "prefill", "abort", "call",
                common.AbortNotification(ROOM, "127.0.0.1", 40000, 7).to_zmq(), "to_zmq()")
    samples.add("mori-abort-ack", "decode", "abort-ack", "call",
                common.AbortAck(ROOM, 0, 7).to_zmq(), "to_zmq()")
    return samples


def by_hand() -> Samples:
    samples = Samples("mooncake")
    samples.add("abort-ack-three-frames", "decode", "abort-ack", "by-hand",
                [b"ABORT_ACK", b"42", b"5"],
                "sent by versions before 0.5.23, which know no generation")
    samples.add("abort-without-address", "prefill", "abort", "by-hand", [b"ABORT", b"42"],
                "read by 0.5.23 (no acknowledgement), sent by no version")
    return samples


SCENES: dict[str, Callable[[], Samples]] = {scene.__name__: scene for scene in (
    mooncake_room, mooncake_shapes, mooncake_dummy, mooncake_undeferred, mooncake_aux,
    mooncake_prefill_complete, mooncake_staging, nixl_room, nixl_shapes, nixl_staging,
    mori_messages, by_hand)}


def write(out: pathlib.Path, rows: list[dict[str, Any]]) -> None:
    out.mkdir(parents=True, exist_ok=True)
    for old in out.glob("*.frames"):
        old.unlink()
    columns = ("name", "flavour", "listener", "kind", "origin", "note")
    lines = ["\t".join(columns)]
    for row in sorted(rows, key=lambda each: each["name"]):
        (out / f"{row['name']}.frames").write_text("".join(f"{each}\n" for each in row["frames"]),
                                                   encoding="ascii")
        lines.append("\t".join(row[column] for column in columns))
    (out / "manifest.tsv").write_text("\n".join(lines) + "\n", encoding="ascii")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--out", type=pathlib.Path, default=GOLDEN)
    parser.add_argument("--scene", choices=SCENES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.scene:
        try:
            samples = SCENES[options.scene]()
            print(json.dumps(samples.rows))
        except BaseException:  # pylint: disable=broad-except
            traceback.print_exc()
            sglang_rank.leave(1)
        sglang_rank.leave()
    rows: list[dict[str, Any]] = []
    for scene in SCENES:
        done = subprocess.run([sys.executable, str(HERE), "--scene", scene], check=False, timeout=120,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        if done.returncode != 0:
            print(f"capture: scene {scene} failed:\n{done.stderr}", file=sys.stderr)
            return 1
        rows += json.loads(done.stdout.splitlines()[-1])
    write(options.out, rows)
    print(f"{len(rows)} samples in {options.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
