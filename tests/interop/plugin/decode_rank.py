"""A decode rank: SGLang's own decode queues over a pool whose every page is watched."""

import types
from collections import deque

import kvferry
import world
from sglang.srt.disaggregation.decode import DecodePreallocQueue, DecodeTransferQueue
from sglang.srt.disaggregation.utils import (DisaggregationMode, KVClassType,
                                             ReqToMetadataIdxAllocator, TransferBackend,
                                             get_kv_class)
from sglang.srt.server_args import ServerArgs


class ReleaseWitness:
    """Notes, beside the manager, which pages kvferry itself gave back, so that a page that SGLang
    frees earlier is seen."""

    def __init__(self, manager):
        self._manager = manager
        self.released = {}  # (room, page) -> how often given back
        manager.pump = self.pump

    def pump(self):
        for each in self._manager.core.take_released():
            for page in each.pages:
                key = (each.room, page)
                self.released[key] = self.released.get(key, 0) + 1
            self._manager.settle(each.owner)

    def take(self, room, page):
        return self.released.pop((room, page), 0)


class Decode:
    """SGLang's scheduler as far as its decode queues see it."""

    enable_decode_hicache = enable_hisparse = False
    kv_checksum_computer = None

    def __init__(self, settings, plan):
        self.plan = plan
        self.port = settings.disaggregation_bootstrap_port
        backend = TransferBackend(settings.disaggregation_transfer_backend)
        self.pool = world.Pool(plan.layers, plan.pool_pages, plan.row_bytes // settings.attn_tp_size,
                               settings.attn_tp_rank, settings.attn_tp_size)
        self.metadata_buffers = world.metadata(plan.rows)
        self.allocator = ReqToMetadataIdxAllocator(plan.rows)
        self.tree_cache = types.SimpleNamespace(release=self._release, unlock=lambda _lock: None)
        self.metrics_reporter = types.SimpleNamespace(enable_metrics=False)
        self.output_streamer = types.SimpleNamespace(stream_output=lambda *_, **__: None)
        self.batch_result_processor = types.SimpleNamespace(
            _maybe_update_reasoning_tokens=lambda *_: None)
        self.spec_algorithm = types.SimpleNamespace(is_none=lambda: True)
        self.rows_seen = {}
        self._watch_rows()
        self.transfers = DecodeTransferQueue(self.allocator, self.metadata_buffers, self,
                                             self.tree_cache)
        arguments = world.arguments(self.pool, self.metadata_buffers, settings.tp_rank)
        self.manager = get_kv_class(backend, KVClassType.MANAGER)(
            arguments, DisaggregationMode.DECODE, ServerArgs(), False)
        self.witness = ReleaseWitness(self.manager)
        self.prealloc = self._queue(settings, backend)
        self.freed_early = []  # pages that SGLang freed while kvferry had them
        self.poisoned = deque()  # freed pages of failed requests, filled with a known byte
        self.late_bytes = 0

    def _queue(self, settings, backend):
        queue = object.__new__(DecodePreallocQueue)
        queue.kv_manager, queue.transfer_backend = self.manager, backend
        queue.scheduler, queue.transfer_queue = self, self.transfers
        queue.gloo_group, queue.tp_rank, queue.pp_size = (settings.attn_tp_group.cpu_group,
                                                          settings.tp_rank, 1)
        queue.queue, queue.pending_reqs, queue.retracted_queue = [], [], []
        queue._ensure_last_attempt_time, queue._ensure_retry_count = {}, {}
        queue._ensure_retry_interval, queue._max_ensure_retries = 0.02, 5_000
        queue._prefill_dp_rank_queries = {}
        queue._num_published_destinations = 0
        queue.max_total_num_tokens = self.plan.pool_pages * world.PAGE_TOKENS
        queue.req_to_metadata_buffer_idx_allocator = self.allocator
        queue._check_if_req_exceed_kv_capacity = lambda _req: False
        return queue

    def _watch_rows(self):
        """SGLang clears a row right after it has read it."""
        read = self.metadata_buffers.get_buf

        def get_buf(index):
            self.rows_seen[index] = [array[index].copy() for array in
                                     world.metadata_arrays(self.metadata_buffers)]
            return read(index)

        self.metadata_buffers.get_buf = get_buf

    def _release(self, req):
        """SGLang gives the pages of a failed request to its allocator."""
        pages, req.kv.pages, req.kv.holds_kv = req.kv.pages, None, False
        granted = req.granted_pages
        # An abort may come just after the end: then the pages were fenced, and passed to SGLang.
        passed = bool(granted) and req.core.poll() == kvferry.KvPoll.Success
        self.freed_early += [page for page in granted
                             if not self.witness.take(req.bootstrap_room, page) and not passed]
        self.pool.poison(pages)
        self.poisoned.append(pages)
        self._reuse_poisoned(len(self.poisoned) - self.plan.poisoned_rooms)

    def _reuse_poisoned(self, rooms):
        for _ in range(max(rooms, 0)):
            pages = self.poisoned.popleft()
            self.late_bytes += not self.pool.is_poisoned(pages)
            self.pool.free.extend(pages)

    def open(self, number):
        req = world.request(self.plan.room(number), self.plan.tokens(number), self.port)
        req.plan_number, req.granted_pages = number, []
        self.prealloc.add(req)
        return req

    def _preallocate(self):
        """pop_preallocated without its model of memory: whoever waits gets its pages. Returns the
        requests that failed before they had any."""
        queue, failed = self.prealloc, []
        for entry in list(queue.queue):
            req = entry.req
            if req.finished_reason is not None:
                entry.kv_receiver.clear()
                failed.append(req)
            elif entry.waiting_for_input and self.plan.abort_of(req.plan_number) == "decode early":
                entry.kv_receiver.abort()
                continue
            elif entry.waiting_for_input:
                self._grant(entry)
            else:
                continue
            queue.queue.remove(entry)
            queue.pending_reqs = [each for each in queue.pending_reqs if each is not entry]
        return failed

    def _grant(self, entry):
        req, number = entry.req, entry.req.plan_number
        pages = self.pool.take(self.plan.pages(number))
        if pages is None:
            raise RuntimeError("the decode pool is too small for the plan")
        prefix = self.plan.prefix_pages(number)
        req.kv.pages, req.kv.holds_kv = pages, True
        req.granted_pages, req.core = pages[prefix:], entry.kv_receiver._core
        self.pool.fill(req.bootstrap_room, 0, pages[:prefix])
        self.prealloc._send_kv_metadata(
            entry, world.token_row(pages[prefix:]), world.PAGE_TOKENS, None,
            decode_prefix_len=prefix * world.PAGE_TOKENS)
        self.transfers.add(entry)
        req.metadata_buffer_index = entry.metadata_buffer_index
        if self.plan.abort_of(number) == "decode late":
            entry.kv_receiver.abort()

    def turn(self):
        """One turn of the event loop. Returns the requests that ended."""
        self.prealloc._resolve_pending_reqs()
        self.prealloc._update_handshake_waiters()
        ended = self._preallocate()
        before = {id(entry.req): entry.req for entry in self.transfers.queue}
        done = self.transfers.pop_transferred()
        left = {id(entry.req) for entry in self.transfers.queue}
        self.transfers.resolve_deferred_releases()
        done_ids = {id(req) for req in done}
        ended += [req for key, req in before.items() if key not in left and key not in done_ids]
        return ended + done

    def check(self, ended):
        """Returns what is wrong with requests that succeeded; their pages are SGLang's."""
        faults = []
        for req in ended:
            if req.finished_reason is not None:
                continue
            room = req.bootstrap_room
            if not self.pool.is_filled(room, 0, req.kv.pages):
                faults.append(f"room {room}: wrong bytes in its pages")
            faults += self._row_faults(req)
            self.pool.free.extend(req.kv.pages)
            req.kv.pages = None
        return faults

    def _row_faults(self, req):
        room, faults = req.bootstrap_room, []
        if req.output_ids != [world.first_token(room)]:
            faults.append(f"room {room}: first token {req.output_ids}")
        if (req.cached_tokens, req.cached_tokens_device, req.cached_tokens_host) != (3, 2, 1):
            faults.append(f"room {room}: cached token counts")
        seen = self.rows_seen[req.metadata_buffer_index]
        for i, array in enumerate(world.metadata_arrays(self.metadata_buffers)):
            wanted = world.expected_row(room, i, array)
            skip = {0: 4, 1: 28}.get(i, 0)  # elements that SGLang sets itself
            if (seen[i].view("u1")[skip:] != wanted[skip:]).any():
                faults.append(f"room {room}: metadata array {i}")
        return faults

    def quiet(self):
        """Whether kvferry has nothing of this rank's any more."""
        self.manager.pump()
        self.transfers.resolve_deferred_releases()
        return (self.manager.held_receivers == 0 and self.manager.rows.in_use == 0
                and not self.transfers.has_pending_deferred_releases())
