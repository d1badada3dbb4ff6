#!/usr/bin/env python3
"""Moves KV pages between two Python processes on this host, and compares every byte.

    python examples/two_process.py [--transport auto|shm|tcp] [--pages N] [--rooms N]

Starts a bootstrap server, a prefill process and a decode process, each on loopback. Decode opens a room
per request and grants pages; prefill fills its pages with bytes that only that page of that room has, and
sends them in two chunks. Prints the statuses, the path and the rate; exits with 1 when a byte or a status
is not as it should be.

Needs the kvferry package and nothing else.
"""

import argparse
import multiprocessing
import select
import sys
import time

import kvferry

LAYERS = 4
HEADS = 8
HEAD_DIM = 64
PAGE_TOKENS = 16
ITEM_BYTES = PAGE_TOKENS * HEADS * HEAD_DIM * 2  # of one page in one region, F16
PATIENCE_S = 30


def make_pool(pages, aux_slots):
    """Memory of one rank: K and V of each layer, and aux. Returns the pool and its regions."""
    region_bytes = pages * ITEM_BYTES
    pool = kvferry.SharedPool(2 * LAYERS * region_bytes + aux_slots * kvferry.AUX_RECORD_BYTES)
    regions = []
    for kind in (kvferry.RegionKind.Key, kvferry.RegionKind.Value):
        for layer in range(LAYERS):
            regions.append(pool.region(kind, layer, offset=len(regions) * region_bytes,
                                       item_bytes=ITEM_BYTES, item_count=pages))
    regions.append(pool.region(kvferry.RegionKind.Aux, 0, offset=len(regions) * region_bytes,
                               item_bytes=kvferry.AUX_RECORD_BYTES, item_count=aux_slots))
    return pool, regions


def make_manager(role, regions, bootstrap, transport):
    """The manager of one rank that holds all layers and heads."""
    args = kvferry.KvArgs(role, instance=role.name.lower(), model_fingerprint="example",
                          page_size_tokens=PAGE_TOKENS, total_layers=LAYERS, total_kv_heads=HEADS,
                          head_dim=HEAD_DIM, dtype=kvferry.DType.F16, layers=(0, LAYERS),
                          heads=(0, HEADS), regions=regions)
    return kvferry.KvManager(args, {"transport": transport, "bootstrap_addresses": [bootstrap]})


def await_status(manager, handles, done):
    """Sleeps on the manager's event until done(status) holds for each handle."""
    deadline = time.monotonic() + PATIENCE_S
    while not all(done(handle.poll()) for handle in handles):
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            raise TimeoutError(f"after {PATIENCE_S} s: {[handle.poll().name for handle in handles]}; "
                               f"{manager.dump_status()}")
        select.select([manager.event_fd()], [], [], left_s)
        manager.drain_event_fd()


def page_bytes(room, page, region):
    """What page `page` of a room holds in a region: bytes that no other page has."""
    word = (room * 1_000_003 + page * 8_191 + region * 127).to_bytes(8, "little")
    return word * (ITEM_BYTES // len(word))


def run_prefill(pipe, bindings, pages, bootstrap, transport):
    """Sends each room in two chunks; reports statuses, path and seconds."""
    rooms = len(bindings)
    pool, regions = make_pool(rooms * pages, rooms)
    memory = memoryview(pool)
    for room in range(rooms):
        for page in range(pages):
            for number in range(2 * LAYERS):
                begin = (number * rooms * pages + room * pages + page) * ITEM_BYTES
                memory[begin:begin + ITEM_BYTES] = page_bytes(room, page, number)
    with make_manager(kvferry.Role.Prefill, regions, bootstrap, transport) as manager:
        senders = []
        for room, binding in enumerate(bindings):
            sender = kvferry.KvSender(manager, room, binding)
            manager.write_aux(room, room, binding, kvferry.AuxRecord(first_token=room))
            sender.init(pages, aux_slot=room)
            senders.append(sender)
        pipe.send("open")
        await_status(manager, senders, lambda status: status != kvferry.KvPoll.Bootstrapping)
        started = time.monotonic()
        for room, sender in enumerate(senders):
            if sender.poll() == kvferry.KvPoll.Failed:
                continue
            first = room * pages
            half = pages // 2
            for chunk in (range(first, first + half), range(first + half, first + pages)):
                if len(chunk):
                    sender.send(list(chunk))
        await_status(manager, senders, kvferry.is_terminal)
        seconds = time.monotonic() - started
        failures = [str(sender.failure()) for sender in senders if sender.failure()]
        path = next((pair.path for pair in manager.pairs() if pair.path), "")
        pipe.send(([sender.poll().name for sender in senders], failures, path, seconds))
        pipe.recv()  # Decode has compared: now the session may end.


def run_decode(pipe, bindings, pages, bootstrap, transport):
    """Grants pages in reverse order, so that no page keeps its number; compares what came."""
    rooms = len(bindings)
    pool, regions = make_pool(rooms * pages, rooms)
    memory = memoryview(pool)
    with make_manager(kvferry.Role.Decode, regions, bootstrap, transport) as manager:
        receivers, grants = [], []
        for room, binding in enumerate(bindings):
            receiver = kvferry.KvReceiver(manager, room, binding)
            grant = list(reversed(range(room * pages, (room + 1) * pages)))
            receiver.init(bootstrap, "prefill")
            receiver.send_metadata(grant, aux_slot=room)
            receivers.append(receiver)
            grants.append(grant)
        await_status(manager, receivers, kvferry.is_terminal)
        wrong = []
        for room, grant in enumerate(grants):
            if receivers[room].poll() != kvferry.KvPoll.Success:
                wrong.append(f"room {room}: {receivers[room].failure()}")
                continue
            token = manager.read_aux(room, room, bindings[room]).first_token
            if token != room:
                wrong.append(f"room {room}: first token {token}")
            for page, target in enumerate(grant):
                for number in range(2 * LAYERS):
                    begin = (number * rooms * pages + target) * ITEM_BYTES
                    if memory[begin:begin + ITEM_BYTES] != page_bytes(room, page, number):
                        wrong.append(f"room {room}: page {page} of region {number} differs")
        pipe.send(([receiver.poll().name for receiver in receivers], wrong))
        pipe.recv()


def expect(pipe, process):
    """The process's next message; an error when it ended without one."""
    if not pipe.poll(2 * PATIENCE_S):
        raise RuntimeError(f"{process.name} says nothing (exit code {process.exitcode})")
    return pipe.recv()


def run(options):
    """Exit code."""
    context = multiprocessing.get_context("spawn")  # A fork would copy a manager without its threads.
    bindings = [kvferry.Binding.random() for _ in range(options.rooms)]
    with kvferry.BootstrapServer() as server:
        ends = []
        for target in (run_prefill, run_decode):
            here, there = context.Pipe()
            process = context.Process(target=target, name=target.__name__.removeprefix("run_"),
                                      args=(there, bindings, options.pages, server.address(),
                                            options.transport))
            process.start()
            there.close()
            ends.append((here, process))
        (prefill_pipe, prefill), (decode_pipe, decode) = ends
        try:
            expect(prefill_pipe, prefill)
            decode_statuses, wrong = expect(decode_pipe, decode)
            prefill_statuses, failures, path, seconds = expect(prefill_pipe, prefill)
            for pipe in (prefill_pipe, decode_pipe):
                pipe.send("end")
        except (EOFError, RuntimeError) as error:
            print(f"two_process: {error or 'a process ended early'}", file=sys.stderr)
            return 1
        finally:
            for pipe, process in ends:
                pipe.close()
                process.join(PATIENCE_S)
    moved = options.rooms * options.pages * 2 * LAYERS * ITEM_BYTES
    print(f"{options.rooms} rooms of {options.pages} pages ({moved / 1e6:.1f} MB) over {path}: "
          f"{seconds * 1e3:.1f} ms, {moved / seconds / 1e9:.2f} GB/s")
    for side, statuses in (("prefill", prefill_statuses), ("decode", decode_statuses)):
        print(f"{side}: " + ", ".join(f"{statuses.count(name)} {name}" for name in sorted(set(statuses))))
    for line in failures + wrong:
        print(line, file=sys.stderr)
    sound = not failures and not wrong and set(prefill_statuses + decode_statuses) == {"Success"}
    print("every byte is equal" if sound else "NOT equal")
    return 0 if sound and prefill.exitcode == 0 and decode.exitcode == 0 else 1


def positive(text):
    """A whole number from 1."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is not 1 or more")
    return number


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--transport", default="auto", choices=["auto", "shm", "tcp"])
    parser.add_argument("--pages", type=positive, default=32,
                        help=f"pages per room, {2 * LAYERS * ITEM_BYTES} bytes each (default 32)")
    parser.add_argument("--rooms", type=positive, default=8, help="rooms at once (default 8)")
    return run(parser.parse_args())


if __name__ == "__main__":
    sys.exit(main())
