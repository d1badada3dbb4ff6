"""What every peer in Python has in common; peer.h is the same for those in C++ and tells the lines.

A peer gives two functions, connect_source(control, pool) and connect_target(control, pool), each
called in a process of its own, and the objects that they return:

    source.version()                   text for the ready line
    source.ways(page_bytes, batch)     list of Way, of which the fastest counts
    source.start(way, page_bytes)
    source.submit(sources, targets)    numpy arrays of offsets in the two pools; one request
    source.progress()                  pages known as applied since the last call
    target.start(page_bytes)
    target.progress()                  called often while a run is on; sleeps with nothing to do

Both processes are stopped between runs and hold no pool memory then.
"""

import argparse
import collections
import ctypes
import json
import mmap
import multiprocessing
import os
import signal
import sys
import time

POOL_BYTES = 1 << 30
KV_MIX_PAGE_BYTES = 32 << 10
CHECKED_PAGES = 64
CALIBRATION_SECONDS = 0.2
CALIBRATION_ROUNDS = 2
STALL_SECONDS = 10
FACTOR = 0x9E3779B97F4A7C15
PR_SET_PDEATHSIG = 1

# `requests` is how many may be under way at once.
Way = collections.namedtuple("Way", "name pages_per_request requests")


class PeerError(Exception):
    """A failure that ends the command; its text goes to the bench."""


class Pool:
    """The memory that a peer registers: its address stays, its pages come and go with the runs."""

    def __init__(self):
        self.map = mmap.mmap(-1, POOL_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.map))

    def words(self):
        import numpy  # Not before the fork.
        return numpy.frombuffer(self.map, dtype=numpy.uint64)

    def fill(self):
        import numpy
        words = self.words()
        step = 1 << 20
        first = numpy.arange(1, 8 * step + 1, 8, dtype=numpy.uint64) * numpy.uint64(FACTOR)
        for at in range(0, len(words), step):
            # Distributes: (offset + 1) * FACTOR.
            numpy.add(first, numpy.uint64(8 * at * FACTOR % (1 << 64)), out=words[at:at + step])

    def fill_with_rubbish(self):
        self.words().fill(0xEEEEEEEEEEEEEEEE)

    def release(self):
        self.map.madvise(mmap.MADV_DONTNEED)


def wrong_pages(pool, page_bytes, sources, targets):
    import numpy
    words = pool.words()
    count = page_bytes // 8
    within = numpy.arange(1, page_bytes + 1, 8, dtype=numpy.uint64)
    wrong = 0
    for source, target in zip(sources.tolist(), targets.tolist()):
        expected = (within + numpy.uint64(source)) * numpy.uint64(FACTOR)
        wrong += not numpy.array_equal(words[target // 8:target // 8 + count], expected)
    return wrong


def serve_target(peer, control):
    pool = Pool()
    target = peer.connect_target(control, pool)
    while True:
        verb, page_bytes = control.recv()
        assert verb == "run"
        pool.fill_with_rubbish()
        target.start(page_bytes)
        control.send("ready")
        while True:
            target.progress()
            if not control.poll():
                continue
            verb, *arguments = control.recv()
            if verb == "stop":
                break
            wrong = wrong_pages(pool, page_bytes, *arguments)
            control.send(f"{wrong} pages reported as complete are wrong" if wrong else "right")
        pool.release()
        control.send("stopped")


class Measurement:
    def __init__(self, source, control, pool):
        import numpy
        self.source, self.control, self.pool = source, control, pool
        self.random = numpy.random.default_rng(20)
        self.best = {}
        self.page_bytes = 0

    def run(self, block, seconds, batch):
        page_bytes = KV_MIX_PAGE_BYTES if block == "kv-mix" else int(block)
        if page_bytes < 8 or page_bytes % 8 or page_bytes > POOL_BYTES // CHECKED_PAGES:
            raise PeerError(f"block '{block}': not a multiple of 8 up to 16 MiB")
        self.page_bytes = page_bytes
        self.control.send(("run", page_bytes))
        self.pool.fill()
        self.expect("ready")
        way = self.best_way(batch)
        gbps = self.measure(way, seconds)
        self.check(way)
        self.control.send(("stop",))
        self.expect("stopped")
        self.pool.release()
        return {"gbps": round(gbps, 4), "way": way.name}

    def expect(self, wanted):
        try:
            answer = self.control.recv()
        except EOFError:
            raise PeerError("the target process ended") from None
        if answer != wanted:
            raise PeerError(answer)

    def best_way(self, batch):
        """The first run of a block and batch tries all ways; later ones repeat its choice."""
        key = (self.page_bytes, batch)
        if key not in self.best:
            figures = []
            for way in self.source.ways(self.page_bytes, batch) * CALIBRATION_ROUNDS:
                self.check(way)  # Also makes what the library makes at first use.
                figures.append((self.measure(way, CALIBRATION_SECONDS), way))
                if "PEER_VERBOSE" in os.environ:
                    print(self.page_bytes, way.name, f"{figures[-1][0]:.3f}", file=sys.stderr)
            self.best[key] = max(figures)[1]
        return self.best[key]

    def measure(self, way, seconds):
        step = way.pages_per_request
        count = POOL_BYTES // self.page_bytes
        offsets = self.random.integers(0, count, size=(2, max(1 << 16, 4 * step))) * self.page_bytes
        at = 0
        posted = applied = 0
        self.source.start(way, self.page_bytes)
        start = time.monotonic()
        while time.monotonic() - start < seconds:
            while posted - applied < step * way.requests:
                if at + step > offsets.shape[1]:
                    at = 0
                self.source.submit(offsets[0, at:at + step], offsets[1, at:at + step])
                at += step
                posted += step
            applied += self.source.progress()
        self.drain(posted, applied)
        return posted * self.page_bytes / (time.monotonic() - start) / 1e9

    def drain(self, posted, applied):
        start = time.monotonic()
        while applied < posted:
            applied += self.source.progress()
            if time.monotonic() - start > STALL_SECONDS:
                raise PeerError(f"stalled: {applied} of {posted} pages complete")

    def check(self, way):
        """What a peer calls complete must be there: the target looks at pages moved in this way."""
        count = POOL_BYTES // self.page_bytes
        step = way.pages_per_request
        pages = min(count, max(CHECKED_PAGES, step)) // step * step
        sources = self.random.integers(0, count, size=pages) * self.page_bytes
        targets = self.random.permutation(count)[:pages] * self.page_bytes
        self.source.start(way, self.page_bytes)
        applied = 0
        for at in range(0, pages, step):
            self.source.submit(sources[at:at + step], targets[at:at + step])
            while at + step - applied >= step * way.requests:
                applied += self.source.progress()
        self.drain(pages, applied)
        self.control.send(("check", sources, targets))
        self.expect("right")


def serve_source(peer, control, front):
    pool = Pool()
    source = peer.connect_source(control, pool)
    front.send({"version": source.version(), "settings": peer.settings})
    measurement = Measurement(source, control, pool)
    while True:
        front.send(measurement.run(*front.recv()))


def receive_set_up(control):
    """What the target tells the source of itself, or its error."""
    answer = control.recv()
    if isinstance(answer, str):
        raise PeerError(answer)
    return answer


def start(serve, peer, own_ends, other_ends):
    """Forks a process that serves until it is killed; its failure goes to the last end as text."""
    child = os.fork()
    if child != 0:
        return child
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    try:
        for end in other_ends:  # Else the death of a process would not be the end of its pipe.
            end.close()
        serve(peer, *own_ends)
    except Exception as error:  # Whatever the library raises is the bench's to know.
        try:
            own_ends[-1].send(f"{type(error).__name__}: {error}")
        except OSError:
            pass  # The other side is gone, which is why this one ends.
    finally:
        os._exit(1)  # Without the libraries' exit handlers, which may wait for the other side.


class Front:
    """Speaks with the bench. Both working processes are stopped between runs, since threads of some
    libraries poll without end and would take the cores from whatever is measured then."""

    def __init__(self, peer):
        source_end, target_end = multiprocessing.Pipe()
        self.pipe, front_end = multiprocessing.Pipe()
        target = start(serve_target, peer, (target_end,), (source_end, self.pipe, front_end))
        source = start(serve_source, peer, (source_end, front_end), (target_end, self.pipe))
        self.children = (source, target)
        for end in (source_end, target_end, front_end):
            end.close()

    def signal(self, number):
        for child in self.children:
            os.kill(child, number)

    def answer(self):
        try:
            answer = self.pipe.recv()
        except EOFError:
            raise PeerError("the source process ended") from None
        if isinstance(answer, str):
            raise PeerError(answer)
        return answer

    def serve(self, say):
        say("ready " + json.dumps(self.answer()))
        self.signal(signal.SIGSTOP)
        for line in sys.stdin:
            words = line.split()
            if words == ["quit"]:
                return
            try:
                verb, block, seconds, batch = words
                command = (block, float(seconds), int(batch))
                if verb != "run" or not command[1] > 0 or command[2] < 0:
                    raise ValueError
            except ValueError:
                say(json.dumps({"error": f"not a command: {line.strip()}"}))
                continue
            self.signal(signal.SIGCONT)
            self.pipe.send(command)
            answer = self.answer()
            self.signal(signal.SIGSTOP)
            say(json.dumps(answer))

    def end(self):
        self.signal(signal.SIGKILL)
        for child in self.children:
            os.waitpid(child, 0)


class Peer:
    """Options of the command, its settings as text, and the two connect functions."""

    def __init__(self, connect_source, connect_target):
        parser = argparse.ArgumentParser()
        parser.add_argument("--tuned", action="store_true", help="the best settings found")
        self.options = parser.parse_args()
        self.settings = ""
        self.connect_source, self.connect_target = connect_source, connect_target

    def state(self, text):
        self.settings += (" " if self.settings else "") + text

    def set_default(self, name, value):
        """Sets an environment variable unless the caller did; states it either way."""
        self.state(f"{name}={os.environ.setdefault(name, value)}")

    def run(self):
        # The libraries' own words on stdout must not reach the bench.
        answers = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)

        def say(line):
            print(line, file=answers, flush=True)

        front = Front(self)
        try:
            front.serve(say)
            return 0
        except PeerError as error:
            say(json.dumps({"error": str(error)}))
            return 1
        finally:
            front.end()
