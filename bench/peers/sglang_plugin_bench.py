#!/usr/bin/python3
"""SGLang 0.5.23 on kvferry's backend against SGLang on its own, in the same run.

    sglang_plugin_bench.py --site FOLDER [--rounds N] [--rooms N] [--check]

The same driver (sglang_peer.py) takes rooms through three pairs of processes, in turn, round by round:
SGLang's Mooncake classes with an engine that says that all has arrived, the same with an engine that
copies with process_vm_writev, and kvferry's backend as SGLang's plug-in framework loads it, which moves
the bytes. Prints rooms per second and the 99th percentile, medians over the rounds, and how much of
its rate a Python thread that counts every millisecond keeps in kvferry's processes meanwhile.

With --check the exit code is 1 when kvferry is slower at concurrency 1, less than twice as fast at 256,
or the counting thread keeps less than 75 %. Run it with the interpreter of tools/setup/venv.py
peer-sglang; FOLDER is what `pip install --target FOLDER` made of kvferry's wheel.
"""

import argparse
import ctypes
import json
import multiprocessing
import multiprocessing.connection
import os
import pathlib
import statistics
import sys
import threading
import time
import types

import sglang_peer

ENGINES = ("null", "process_vm", "kvferry")
IDLE_SECONDS = 0.0001  # as SGLang's own loop yields: PREFILL_INPUT_POLL_INTERVAL_S
COUNTER_SECONDS = 0.001
IDLE_SAMPLE_SECONDS = 1.0
MIN_COUNTER_SHARE = 0.75
MIN_RATIO = {1: 1.0, 256: 2.0}


class _Piece(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]


def _vm_engine(null_engine):
    """SGLang's engine interface, with bytes: the target's session names its process."""

    class VmEngine(null_engine):
        libc = ctypes.CDLL(None, use_errno=True)
        most = 512  # pieces of one call

        def transfer_sync(self, session, source, target, length):
            return self.batch_transfer_sync(session, [source], [target], [length])

        def batch_transfer_sync(self, session, sources, targets, lengths):
            process = int(session.rsplit(":", 1)[1])
            for i in range(0, len(sources), self.most):
                part = slice(i, i + self.most)
                sizes = [int(each) for each in lengths[part]]
                ours = (_Piece * len(sizes))(*zip(map(int, sources[part]), sizes))
                theirs = (_Piece * len(sizes))(*zip(map(int, targets[part]), sizes))
                if self.libc.process_vm_writev(process, ours, len(sizes), theirs, len(sizes),
                                               0) != sum(sizes):
                    return -1
            return 0

    return VmEngine()


class Counter(threading.Thread):
    """Counts every millisecond, as far as the interpreter lets it."""

    def __init__(self):
        super().__init__(daemon=True)
        self.count = 0
        self.start()

    def run(self):
        while True:
            time.sleep(COUNTER_SECONDS)
            self.count += 1


def _prepare(engine, port):
    """Puts the engine where the driver looks for SGLang's classes."""
    import sglang_cpu
    load = sglang_cpu.load

    def load_vm(bootstrap_port):
        module = load(bootstrap_port)
        place = "sglang.srt.distributed.device_communicators.mooncake_transfer_engine"
        sys.modules[place]._mooncake_transfer_engine = _vm_engine(sglang_cpu.NullEngine)
        return module

    def load_kvferry(bootstrap_port):
        load(bootstrap_port)
        settings = sys.modules["sglang.srt.runtime_context"].get_disagg()
        settings.disaggregation_transfer_backend = "kvferry"
        from sglang.srt.plugins import load_plugins
        load_plugins()
        from sglang.srt.disaggregation.utils import KVClassType, TransferBackend, get_kv_class
        made = {kind: get_kv_class(TransferBackend("kvferry"), getattr(KVClassType, kind))
                for kind in ("MANAGER", "SENDER", "RECEIVER", "BOOTSTRAP_SERVER")}
        return types.SimpleNamespace(
            MooncakeKVManager=made["MANAGER"], MooncakeKVSender=made["SENDER"],
            MooncakeKVReceiver=made["RECEIVER"], MooncakeKVBootstrapServer=made["BOOTSTRAP_SERVER"])

    if engine == "process_vm":
        sglang_cpu.load = load_vm
    elif engine == "kvferry":
        os.environ |= {"KVFERRY_BOOTSTRAP_ALLOW": f"127.0.0.1:{port}", "SGLANG_HOST_IP": "127.0.0.1",
                       # No decode scheduler is loaded here, whose release timer could be turned off.
                       "SGLANG_DISAGGREGATION_DEFERRED_DECODE_KV_RELEASE_TIMEOUT": "inf"}
        sglang_cpu.load = load_kvferry


class Engine(sglang_peer.Engine):
    """The driver's engine with a counting thread beside the rooms."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.counter = Counter()
        begin = self.counter.count
        time.sleep(IDLE_SAMPLE_SECONDS)
        self.idle_rate = (self.counter.count - begin) / IDLE_SAMPLE_SECONDS

    def run(self, first, rooms, concurrency):
        begin, count = time.perf_counter(), self.counter.count
        try:
            figures = super().run(first, rooms, concurrency)
        except sglang_peer.PeerError as error:
            core = getattr(self.manager, "core", None)
            raise sglang_peer.PeerError(
                f"{error}{'' if core is None else ': ' + core.dump_status()}") from None
        seconds = time.perf_counter() - begin
        rate = (self.counter.count - count) / seconds
        return figures | {"counter_share": rate / self.idle_rate}


def serve(engine, role, port, slots, control):
    _prepare(engine, port)
    sglang_peer.Engine, sglang_peer.IDLE_SECONDS = Engine, IDLE_SECONDS
    sglang_peer.serve(role, port, slots, control)


class Side(sglang_peer.Side):
    def __init__(self, engine, role, port, slots):
        self.control, theirs = multiprocessing.Pipe()
        self.process = multiprocessing.Process(target=serve, daemon=True,
                                               args=(engine, role, port, slots, theirs))
        self.process.start()
        theirs.close()


class Pair(sglang_peer.Pair):
    def __init__(self, engine, slots):
        self.engine = engine
        made = sglang_peer.Side
        sglang_peer.Side = lambda *arguments: Side(engine, *arguments)
        try:
            super().__init__(slots)
        finally:
            sglang_peer.Side = made

    def run(self, concurrency, rooms):
        first, self.next_room = self.next_room, self.next_room + rooms
        for side in (self.prefill, self.decode):
            side.ask("run", first, rooms, concurrency)
        said, waiting = {}, {side.control: side for side in (self.prefill, self.decode)}
        try:
            while waiting:  # in the order of their words: a dead side's cause, not who waited for it
                for control in multiprocessing.connection.wait(list(waiting)):
                    side = waiting.pop(control)
                    said[side] = side.answer()
        except sglang_peer.PeerError as error:
            raise sglang_peer.PeerError(f"SGLang with {self.engine}: {error}") from None
        decode, prefill = said[self.decode], said[self.prefill]
        return decode | {"cpu_us": decode["cpu_us"] + prefill["cpu_us"], "counter_share": min(
            decode["counter_share"], prefill["counter_share"])}


def measure(pairs, rounds, rooms):
    """Returns {(engine, concurrency): [figures of each round]}."""
    figures = {}
    for concurrency in MIN_RATIO:
        count = max(50, rooms // 8) if concurrency == 1 else rooms
        for pair in pairs:
            pair.run(concurrency, count)  # warm
        for _ in range(rounds):
            for pair in pairs:
                figures.setdefault((pair.engine, concurrency), []).append(
                    pair.run(concurrency, count))
    return figures


def row(engine, concurrency, rounds, reference):
    def median(name):
        return statistics.median(each[name] for each in rounds)
    return {"engine": engine, "concurrency": concurrency, "rooms_per_s": median("rooms_per_s"),
            "p50_ms": median("p50_ms"), "p99_ms": median("p99_ms"), "cpu_us": median("cpu_us"),
            "counter_share": median("counter_share"),
            "ratio": median("rooms_per_s") / reference}


def report(figures):
    rows = []
    for concurrency in MIN_RATIO:
        reference = max(statistics.median(each["rooms_per_s"] for each in
                                          figures[name, concurrency])
                        for name in ENGINES if name != "kvferry")
        rows += [row(name, concurrency, figures[name, concurrency], reference) for name in ENGINES]
    print(f"{'SGLang with':12} {'at once':>7} {'rooms/s':>9} {'to best own':>11} {'p50 ms':>8} "
          f"{'p99 ms':>8} {'CPU us/room':>11} {'counter':>8}")
    for each in rows:
        print(f"{each['engine']:12} {each['concurrency']:7} {each['rooms_per_s']:9.0f} "
              f"{each['ratio']:11.2f} {each['p50_ms']:8.2f} {each['p99_ms']:8.2f} "
              f"{each['cpu_us']:11.0f} {each['counter_share']:8.0%}")
    return rows


def shortfalls(rows):
    found = []
    for each in rows:
        if each["engine"] != "kvferry":
            continue
        wanted = MIN_RATIO[each["concurrency"]]
        if each["ratio"] < wanted:
            found.append(f"{each['ratio']:.2f} times SGLang's own at concurrency "
                         f"{each['concurrency']}, wanted {wanted}")
        if each["concurrency"] > 1 and each["counter_share"] < MIN_COUNTER_SHARE:
            found.append(f"the counting thread kept {each['counter_share']:.0%}, wanted "
                         f"{MIN_COUNTER_SHARE:.0%}")
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--site", required=True, type=pathlib.Path,
                        help="folder with the installed kvferry package")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rooms", type=int, default=4000, help="rooms of a round at 256 at once")
    parser.add_argument("--json", type=pathlib.Path, help="file for the figures")
    parser.add_argument("--check", action="store_true", help="exit 1 when short of the goals")
    options = parser.parse_args()
    sys.path.append(str(options.site.resolve()))  # a spawned process gets its parent's
    multiprocessing.set_start_method("spawn")
    pairs = []
    try:
        for engine in ENGINES:
            pairs.append(Pair(engine, 256))
        rows = report(measure(pairs, options.rounds, options.rooms))
    except sglang_peer.PeerError as error:
        print(error, file=sys.stderr)
        return 1
    finally:
        for pair in pairs:
            pair.quit()
    found = shortfalls(rows)
    if options.json:
        options.json.write_text(json.dumps({"ok": not found, "rows": rows}, indent=1),
                                encoding="utf-8")
    for each in found:
        print(f"short: {each}", file=sys.stderr)
    return 1 if options.check and found else 0


if __name__ == "__main__":
    sys.exit(main())
