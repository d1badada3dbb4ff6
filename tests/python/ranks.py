"""Ranks for the tests: memory, managers and rooms of one layer layout, on loopback."""

import select
import time

import numpy

import kvferry

LAYERS = 2
HEADS = 2
HEAD_DIM = 8
PAGE_TOKENS = 4
ITEM_BYTES = PAGE_TOKENS * HEADS * HEAD_DIM * 2
PAGES = 64
AUX_SLOTS = 16
PATIENCE_S = 30
# Everything that ends by a timer ends soon; nothing here is tried against real peers far away.
OPTIONS = {"transport": "tcp", "stop_timeout_ms": 500}


class NumpyTensor:
    """An array that has DLPack and nothing else, as tensors have; device: what it says it lies on."""

    def __init__(self, array, device=(1, 0)):
        self.array = array
        self.device = device

    def __dlpack__(self, **_):
        return self.array.__dlpack__()

    def __dlpack_device__(self):
        return self.device


LENDERS = {
    "numpy": lambda size: numpy.zeros(size, "u1"),
    "bytearray": bytearray,
    "dlpack": lambda size: NumpyTensor(numpy.zeros(size, "u1")),
    "pool": kvferry.SharedPool,
}


class Memory:
    """K and V per layer, and aux, each from a lender of its own."""

    def __init__(self, lender="numpy", pages=PAGES):
        self.pages = pages
        self.lenders = [LENDERS[lender](pages * ITEM_BYTES) for _ in range(2 * LAYERS)]
        self.aux = LENDERS[lender](AUX_SLOTS * kvferry.AUX_RECORD_BYTES)

    def regions(self):
        """In the order that both sides share."""
        kinds = [kvferry.RegionKind.Key] * LAYERS + [kvferry.RegionKind.Value] * LAYERS
        regions = [kvferry.Region(kind, number % LAYERS, lender, item_bytes=ITEM_BYTES,
                                  item_count=self.pages)
                   for number, (kind, lender) in enumerate(zip(kinds, self.lenders, strict=True))]
        regions.append(kvferry.Region(kvferry.RegionKind.Aux, 0, self.aux,
                                      item_bytes=kvferry.AUX_RECORD_BYTES, item_count=AUX_SLOTS))
        return regions

    def page(self, region, page):
        """The bytes of one page in one region."""
        lender = self.lenders[region]
        view = memoryview(lender.array if isinstance(lender, NumpyTensor) else lender)
        return view[page * ITEM_BYTES:(page + 1) * ITEM_BYTES]

    def fill(self, page, tag):
        """Writes bytes that only this page of this tag has."""
        for region in range(2 * LAYERS):
            self.page(region, page)[:] = page_bytes(tag, region)

    def holds(self, page, tag):
        """Whether fill(page, tag) would change nothing."""
        return all(self.page(region, page) == page_bytes(tag, region)
                   for region in range(2 * LAYERS))


def page_bytes(tag, region):
    """One page of bytes for a tag."""
    return numpy.random.default_rng((tag, region)).bytes(ITEM_BYTES)


def kv_args(role, regions, **changed):
    """Args of a rank that holds all layers and heads."""
    values = {"instance": role.name.lower(), "model_fingerprint": "model",
              "page_size_tokens": PAGE_TOKENS, "total_layers": LAYERS, "total_kv_heads": HEADS,
              "head_dim": HEAD_DIM, "layers": (0, LAYERS), "heads": (0, HEADS), "vocab_size": 1000,
              "regions": regions}
    return kvferry.KvArgs(role, **values | changed)


def await_that(manager, holds, what):
    """Sleeps on the manager's event until holds() does."""
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        left_s = deadline - time.monotonic()
        assert left_s > 0, f"no {what} within {PATIENCE_S} s: {manager.dump_status()}"
        # Not everything that a test waits for is a status; a second look costs nothing.
        select.select([manager.event_fd()], [], [], min(left_s, 0.05))
        manager.drain_event_fd()


class Pair:
    """A registry, a prefill and a decode manager."""

    def __init__(self, lender="numpy", options=None, server=None):
        self.server = server or kvferry.BootstrapServer()
        self.options = OPTIONS | {"bootstrap_addresses": [self.server.address()]} | (options or {})
        self.prefill_memory = Memory(lender)
        self.decode_memory = Memory(lender)
        self.prefill = kvferry.KvManager(
            kv_args(kvferry.Role.Prefill, self.prefill_memory.regions()), self.options)
        self.decode = kvferry.KvManager(
            kv_args(kvferry.Role.Decode, self.decode_memory.regions()), self.options)

    def open(self, room, pages=4, first=0):
        """A sender and a receiver of one room, initialised; nothing granted, nothing sent."""
        binding = kvferry.Binding.random()
        sender = kvferry.KvSender(self.prefill, room, binding)
        sender.init(pages, aux_slot=room % AUX_SLOTS)
        receiver = kvferry.KvReceiver(self.decode, room, binding)
        receiver.init(self.server.address(), "prefill")
        return Room(self, room, binding, sender, receiver, list(range(first, first + pages)))

    def stop(self):
        """Both managers and the registry."""
        for part in (self.prefill, self.decode, self.server):
            part.stop()


class Room:
    """Both ends of one room; pages keep their order and change their numbers on the way."""

    def __init__(self, pair, number, binding, sender, receiver, source):
        self.pair = pair
        self.number = number
        self.binding = binding
        self.sender = sender
        self.receiver = receiver
        self.source = source
        self.target = [PAGES - 1 - page for page in source]
        self.aux_slot = number % AUX_SLOTS

    def grant(self, **changed):
        self.receiver.send_metadata(self.target, self.aux_slot, **changed)

    def fill(self):
        for page in self.source:
            self.pair.prefill_memory.fill(page, self.number * PAGES + page)
        self.pair.prefill.write_aux(self.aux_slot, self.number, self.binding,
                                    kvferry.AuxRecord(self.number % 1000, prompt_tokens=7))

    def arrived(self):
        """Whether each granted page has the bytes of its source."""
        return all(self.pair.decode_memory.holds(target, self.number * PAGES + source)
                   for source, target in zip(self.source, self.target, strict=True))

    def await_sender(self, *statuses):
        await_that(self.pair.prefill, lambda: self.sender.poll() in statuses, f"{statuses}")

    def await_receiver(self, *statuses):
        await_that(self.pair.decode, lambda: self.receiver.poll() in statuses, f"{statuses}")

    def await_grant(self):
        self.await_sender(kvferry.KvPoll.WaitingForInput)

    def await_ends(self):
        """Until both ends have a terminal status."""
        self.await_sender(kvferry.KvPoll.Success, kvferry.KvPoll.Failed)
        self.await_receiver(kvferry.KvPoll.Success, kvferry.KvPoll.Failed)


def take_released(manager, count):
    """That many releases, in order."""
    released = []

    def enough():
        released.extend(manager.take_released())
        return len(released) >= count

    await_that(manager, enough, f"{count} releases")
    return released
