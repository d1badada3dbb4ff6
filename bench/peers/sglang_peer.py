#!/usr/bin/python3
"""SGLang 0.5.23's own control plane, as a peer of `kvferry bench handoff`.

Two processes, prefill (with SGLang's bootstrap server) and decode, run SGLang's unmodified manager,
sender and receiver of its Mooncake backend; only the engine that would move the bytes is one that says
at once that they have arrived (sglang_cpu.py). Each side keeps up to CONCURRENCY rooms under way and
polls them in turn, as SGLang's event loops do.

Prints `ready {json}`, then answers each line `rooms CONCURRENCY ROOMS` with one line: rooms per second,
p50 and p99 from a room's open to its end as decode sees it, CPU time of both processes for each room,
or {"error": text}. Ends with `quit` or its input.
"""

import argparse
import collections
import ctypes
import json
import logging
import multiprocessing
import os
import signal
import socket
import sys
import threading
import time

PAGES_PER_ROOM = 3
ITEM_BYTES = 256
LAYERS = 2
PAGE_TOKENS = 16
AUX_BYTES = (64, 64, 64, 64, 512, 512, 64)  # by SGLang's buffers; the room number comes last
START_SECONDS = 30
ROOM_SECONDS = 60
IDLE_SECONDS = 0.0002
# SGLang's transfer thread looks once more at a room after it has told of its success, and dies when the
# room was cleared meanwhile; so a sender is cleared a while after its end.
CLEAR_SECONDS = 2
PR_SET_PDEATHSIG = 1


class PeerError(Exception):
    """A failure that ends a run; its text goes to the bench."""


class Engine:
    """One side: the buffers that SGLang is told of, and its manager."""

    def __init__(self, role, port, slots):
        import numpy
        import sglang_cpu
        self.role, self.slots, self.numpy = role, slots, numpy
        self.address = f"127.0.0.1:{port}"
        self.sglang = sglang_cpu.load(port)
        from sglang.srt.disaggregation.base.conn import KVArgs, KVPoll
        from sglang.srt.disaggregation.utils import DisaggregationMode
        from sglang.srt.server_args import ServerArgs
        self.poll_values = KVPoll
        self.ended = collections.deque()  # (when, handle), to be cleared
        self.dead_thread = None
        threading.excepthook = self.note_dead_thread
        if role == "prefill":
            self.server = self.sglang.MooncakeKVBootstrapServer("127.0.0.1", port)
            self.await_server(port)
            mode = DisaggregationMode.PREFILL
        else:
            mode = DisaggregationMode.DECODE
        self.manager = self.sglang.MooncakeKVManager(self.arguments(KVArgs()), mode, ServerArgs(),
                                                     False)
        self.pages = [numpy.arange(slot * PAGES_PER_ROOM, (slot + 1) * PAGES_PER_ROOM,
                                   dtype=numpy.int32) for slot in range(slots)]

    @staticmethod
    def await_server(port):
        end = time.monotonic() + START_SECONDS
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                return
            except OSError:
                if time.monotonic() >= end:
                    raise PeerError("SGLang's bootstrap server does not listen") from None
                time.sleep(0.05)

    def arguments(self, arguments):
        import sglang_cpu
        zeros, count = self.numpy.zeros, self.slots * PAGES_PER_ROOM
        self.kv = [zeros(count * ITEM_BYTES, self.numpy.uint8) for _ in range(2 * LAYERS)]
        self.aux = [zeros(self.slots * size, self.numpy.uint8) for size in AUX_BYTES]
        return sglang_cpu.fill_kv_args(arguments, self.kv, self.aux, item_bytes=ITEM_BYTES,
                                       aux_bytes=AUX_BYTES, layers=LAYERS, page_tokens=PAGE_TOKENS)

    def connect(self):
        """Decode learns of prefill's ranks."""
        end = time.monotonic() + START_SECONDS
        while not self.manager.try_ensure_parallel_info(self.address):
            if time.monotonic() >= end:
                raise PeerError("decode finds no prefill at SGLang's bootstrap server")
            time.sleep(0.1)

    def open(self, room):
        if self.role == "prefill":
            return self.sglang.MooncakeKVSender(self.manager, self.address, room)
        receiver = self.sglang.MooncakeKVReceiver(self.manager, self.address, room)
        receiver.init(0)
        return receiver

    def hand_over(self, handle, slot):
        """What each side does for a room that waits for input."""
        if self.role == "prefill":
            handle.pop_decode_prefix_len()
            handle.init(PAGES_PER_ROOM, slot)
            handle.send(self.pages[slot])
        else:
            handle.send_metadata(self.pages[slot], slot)

    def note_dead_thread(self, what):
        self.dead_thread = f"{what.thread.name if what.thread else 'a thread'}: {what.exc_value}"

    def clear_ended(self, now):
        wait = CLEAR_SECONDS if self.role == "prefill" else 0
        while self.ended and now - self.ended[0][0] >= wait:
            self.ended.popleft()[1].clear()

    def run(self, first, rooms, concurrency):
        status = self.poll_values
        free, live, latencies, failed = list(range(concurrency)), {}, [], 0
        cpu, begin, following = time.process_time(), time.perf_counter(), first
        end = begin + ROOM_SECONDS
        while len(latencies) < rooms:
            moved = False
            while free and following < first + rooms:
                live[following] = [self.open(following), free.pop(), False, time.perf_counter()]
                following += 1
                moved = True
            for room, state in list(live.items()):
                handle, slot, is_sent, opened = state
                polled = handle.poll()
                if polled == status.WaitingForInput and not is_sent:
                    state[2] = moved = True
                    self.hand_over(handle, slot)
                elif polled in (status.Success, status.Failed):
                    moved = True
                    latencies.append(time.perf_counter() - opened)
                    failed += polled == status.Failed
                    self.ended.append((time.perf_counter(), handle))
                    del live[room]
                    free.append(slot)
            self.clear_ended(time.perf_counter())
            if self.dead_thread:
                raise PeerError(f"{self.role}: a thread of SGLang died: {self.dead_thread}")
            if not moved:
                if time.perf_counter() >= end:
                    raise PeerError(f"{self.role}: {len(live)} rooms do not end")
                time.sleep(IDLE_SECONDS)
        seconds = time.perf_counter() - begin
        if failed:
            raise PeerError(f"{self.role}: {failed} of {rooms} rooms failed")
        latencies.sort()
        return {"rooms_per_s": rooms / seconds, "p50_ms": 1e3 * latencies[rooms // 2],
                "p99_ms": 1e3 * latencies[min(rooms - 1, rooms * 99 // 100)],
                "cpu_us": 1e6 * (time.process_time() - cpu) / rooms}


def serve(role, port, slots, control):
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    logging.basicConfig(level=logging.ERROR, stream=sys.stderr)
    logging.Logger.warning_once = lambda self, text, *values: self.warning(text, *values)
    try:
        engine = Engine(role, port, slots)
        control.send("started")
        while True:
            verb, *arguments = control.recv()
            if verb == "quit":
                os._exit(0)  # SGLang's threads do not end by themselves.
            control.send(engine.connect() if verb == "connect" else engine.run(*arguments))
    except EOFError:
        os._exit(0)
    except Exception as error:  # pylint: disable=broad-except
        control.send(PeerError(f"{role}: {type(error).__name__}: {error}"))
        os._exit(1)


class Side:
    def __init__(self, role, port, slots):
        self.control, theirs = multiprocessing.Pipe()
        self.process = multiprocessing.Process(target=serve, args=(role, port, slots, theirs),
                                               daemon=True)
        self.process.start()
        theirs.close()

    def ask(self, *words):
        self.control.send(words)

    def answer(self):
        try:
            answer = self.control.recv()
        except EOFError:
            raise PeerError("a process of the peer ended") from None
        if isinstance(answer, Exception):
            raise answer
        return answer


class Pair:
    def __init__(self, slots):
        with socket.socket() as any_port:
            any_port.bind(("127.0.0.1", 0))
            port = any_port.getsockname()[1]
        self.slots, self.next_room = slots, 1
        self.prefill = Side("prefill", port, slots)
        self.prefill.answer()
        self.decode = Side("decode", port, slots)
        self.decode.answer()
        self.decode.ask("connect")
        self.decode.answer()
        self.run(1, 10)

    def run(self, concurrency, rooms):
        if not 1 <= concurrency <= self.slots or rooms < 1:
            raise PeerError(f"concurrency {concurrency} is not 1 to {self.slots}")
        first, self.next_room = self.next_room, self.next_room + rooms
        for side in (self.prefill, self.decode):
            side.ask("run", first, rooms, concurrency)
        decode, prefill = self.decode.answer(), self.prefill.answer()
        return decode | {"cpu_us": decode["cpu_us"] + prefill["cpu_us"]}

    def quit(self):
        for side in (self.decode, self.prefill):
            side.ask("quit")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--slots", type=int, default=8192, help="the most rooms at one time")
    options = parser.parse_args()
    multiprocessing.set_start_method("spawn")
    import importlib.metadata
    try:
        pair = Pair(options.slots)
    except PeerError as error:
        print(error, file=sys.stderr)
        return 1
    print("ready", json.dumps({
        "version": "SGLang " + importlib.metadata.version("sglang"),
        "settings": f"Mooncake backend with a null engine, Python {sys.version.split()[0]}"}),
          flush=True)
    for line in sys.stdin:
        words = line.split()
        if words[:1] == ["quit"]:
            break
        try:
            verb, concurrency, rooms = words
            if verb != "rooms":
                raise ValueError
            print(json.dumps(pair.run(int(concurrency), int(rooms))), flush=True)
        except ValueError:
            print(json.dumps({"error": f"not a command: {line.strip()}"}), flush=True)
        except PeerError as error:
            print(json.dumps({"error": str(error)}), flush=True)
    pair.quit()
    return 0


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.exit(main())
