"""Processes that run SGLang's unmodified manager, sender, receiver and bootstrap server.

A rank is one process with one manager of the Mooncake backend, whose engine says at once that all has
arrived (sglang_cpu.py), and one thread that does what SGLang's scheduler does for a request: opens it,
polls it, sends, aborts. It notes how long each such call took. The story leads it over a pipe.
"""

import ctypes
import itertools
import logging
import multiprocessing
import os
import signal
import socket
import sys
import threading
import time

import sglang_cpu
import sglang_peer
from scene import NotRun

PATIENCE_SECONDS = 30
TURN_SECONDS = 0.0005
SLOTS = 64
SUCCESS = "success"


class Engine(sglang_peer.Engine):
    """The bench's buffers and arguments, with its bootstrap server here or in another process."""

    def __init__(self, role, port, has_server):  # pylint: disable=super-init-not-called
        import numpy
        self.role, self.slots, self.numpy = role, SLOTS, numpy
        self.address = f"127.0.0.1:{port}"
        self.sglang = sglang_cpu.load(port)
        from sglang.srt.disaggregation.base.conn import KVArgs, KVPoll
        from sglang.srt.disaggregation.utils import DisaggregationMode
        from sglang.srt.server_args import ServerArgs
        self.poll_values = KVPoll
        self.dead_threads = []
        threading.excepthook = self.note_dead_thread
        if has_server:
            self.server = self.sglang.MooncakeKVBootstrapServer("127.0.0.1", port)
        if role == "prefill":
            self.await_server(port)
        self.manager = self.sglang.MooncakeKVManager(
            self.arguments(KVArgs()), DisaggregationMode(role), ServerArgs(), False)

    def note_dead_thread(self, what):
        name = getattr(what.thread, "name", "a thread")
        self.dead_threads.append(f"{name}: {what.exc_type.__name__}: {what.exc_value}")


class Room:
    def __init__(self, handle, pages, held):
        self.handle, self.pages, self.is_sent = handle, pages, held
        self.opened = time.monotonic()


class Rank:
    """One side; its public methods are the commands that a story gives."""

    def __init__(self, engine):
        self.engine, self.manager, self.numpy = engine, engine.manager, engine.numpy
        self.rooms, self.ends = {}, {}
        self.longest = (0.0, "no call")

    def timed(self, what, call, *arguments):
        began = time.monotonic()
        result = call(*arguments)
        self.longest = max(self.longest, (time.monotonic() - began, what))
        return result

    def connect(self, address):
        end = time.monotonic() + PATIENCE_SECONDS
        while not self.manager.try_ensure_parallel_info(address):
            if time.monotonic() >= end:
                raise NotRun(f"decode finds no prefill at SGLang's bootstrap server {address}")
            time.sleep(0.1)

    def rank_port(self):
        return self.manager.rank_port

    def advertise(self, port):
        """The address of this rank is another port from now on, as behind a port mapping."""
        self.manager.rank_port = port
        if self.engine.role == "prefill":
            self.manager.register_to_bootstrap()

    def open(self, rooms, address, held=False, pages=3):
        for room in rooms:
            self.rooms[room] = self.timed("open", self._open, room, address, held, pages)

    def _open(self, room, address, held, pages):
        if self.engine.role == "prefill":
            handle = self.engine.sglang.MooncakeKVSender(self.manager, address, room)
        else:
            handle = self.engine.sglang.MooncakeKVReceiver(self.manager, address, room)
            handle.init(0)
        return Room(handle, self.numpy.arange(pages, dtype=self.numpy.int32), held)

    def abort(self, rooms, threads=0):
        """On this thread, or on so many at once."""
        handles = [self.rooms[room].handle for room in rooms]
        if not threads:
            for handle in handles:
                self.timed("abort", handle.abort)
            return
        gate = threading.Barrier(threads)

        def abort_share(share):
            gate.wait()
            for handle in share:
                handle.abort()

        workers = [threading.Thread(target=abort_share, args=(handles[i::threads],))
                   for i in range(threads)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()

    def release(self, rooms):
        """Their senders hold back no longer."""
        for room in rooms:
            self.rooms[room].is_sent = False

    def open_and_abort(self, rooms, address, doomed):
        """In one turn of the scheduler, as requests and aborts come; how long the aborts took."""
        self.open(rooms, address)
        for room in rooms:
            self.turn_of(room)
        began = time.monotonic()
        self.abort(doomed)
        return time.monotonic() - began

    def give_up_many(self, first, address, pages, stop_seconds):
        """Opens and aborts rooms until a call took so long; returns how many."""
        end = time.monotonic() + PATIENCE_SECONDS
        for room in itertools.count(first):
            if self.longest[0] >= stop_seconds or time.monotonic() >= end:
                return room - first
            self.open([room], address, pages=pages)
            self.turn_of(room)
            self.abort([room])
            self.rooms.pop(room).handle.clear()

    def are_all(self, rooms, state):
        wanted = getattr(self.engine.poll_values, state)
        return all(self.rooms[room].handle.poll() == wanted for room in rooms)

    def ended(self):
        return self.ends

    def longest_call(self):
        longest, self.longest = self.longest, (0.0, "no call")
        return longest

    def dead_threads(self):
        return self.engine.dead_threads

    def turn(self):
        for room in list(self.rooms):
            if room not in self.ends:
                self.turn_of(room)

    def turn_of(self, number):
        room, status = self.rooms[number], self.engine.poll_values
        polled = self.timed("poll", room.handle.poll)
        if polled == status.WaitingForInput and not room.is_sent:
            room.is_sent = True
            if self.engine.role == "prefill":
                room.handle.pop_decode_prefix_len()
                room.handle.init(len(room.pages), number % SLOTS)
                self.timed("send", room.handle.send, room.pages)
            else:
                self.timed("send_metadata", room.handle.send_metadata, room.pages, number % SLOTS)
        elif polled in (status.Success, status.Failed):
            why = SUCCESS if polled == status.Success else self.manager.failure_records.get(
                number, "failed")
            self.ends[number] = (why, time.monotonic() - room.opened)


class Registries:
    """Bootstrap servers in a process of their own, as SGLang has its server beside the schedulers."""

    def __init__(self, ports):
        sglang = sglang_cpu.load(ports[0])
        self.servers = [sglang.MooncakeKVBootstrapServer("127.0.0.1", port) for port in ports]
        for port in ports:
            Engine.await_server(port)

    def turn(self):
        pass


def serve(make, arguments, control):
    ctypes.CDLL(None).prctl(sglang_peer.PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    logging.basicConfig(level=logging.ERROR, stream=sys.stderr)
    logging.Logger.warning_once = lambda self, text, *values: self.warning(text, *values)
    try:
        led = make(*arguments)
        control.send("started")
        while True:
            if control.poll(TURN_SECONDS):
                verb, *words = control.recv()
                control.send(getattr(led, verb)(*words))
            led.turn()
    except EOFError:
        pass
    except Exception as error:  # pylint: disable=broad-except
        control.send(NotRun(f"{type(error).__name__}: {error}"))
    os._exit(1)  # SGLang's threads do not end by themselves.


def make_rank(role, port, has_server):
    return Rank(Engine(role, port, has_server))


class Process:
    def __init__(self, name, make, *arguments):
        self.name = name
        self.control, theirs = multiprocessing.Pipe()
        self.process = multiprocessing.Process(target=serve, args=(make, arguments, theirs),
                                               daemon=True)
        self.process.start()
        theirs.close()
        self._answer("its start", PATIENCE_SECONDS)

    def ask(self, verb, *words, patience=PATIENCE_SECONDS):
        self.control.send((verb, *words))
        return self._answer(verb, patience)

    def _answer(self, what, patience):
        try:
            if not self.control.poll(patience):
                raise NotRun(f"{self.name}: no answer to '{what}' within {patience} s")
            answer = self.control.recv()
        except (EOFError, ConnectionError):
            raise NotRun(f"{self.name} ended before it answered '{what}'") from None
        if isinstance(answer, NotRun):
            raise NotRun(f"{self.name}: {what}: {answer}")
        return answer

    def stop(self):
        os.kill(self.process.pid, signal.SIGSTOP)

    def kill(self):
        self.process.kill()
        self.process.join()

    def is_alive(self):
        return self.process.is_alive()


def free_port():
    with socket.socket() as any_port:
        any_port.bind(("127.0.0.1", 0))
        return any_port.getsockname()[1]


def start_prefill(name, port, has_server=True):
    return Process(name, make_rank, "prefill", port, has_server)


def start_decode(name="d0"):
    return Process(name, make_rank, "decode", free_port(), False)
