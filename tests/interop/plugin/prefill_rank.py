"""A prefill rank: SGLang's own prefill scheduler code over a pool of known bytes."""

import types

import world
from sglang.srt.disaggregation.prefill import (PrefillBootstrapQueue,
                                               SchedulerDisaggregationPrefillMixin)
from sglang.srt.disaggregation.utils import (DisaggregationMode, KVClassType,
                                             ReqToMetadataIdxAllocator, TransferBackend,
                                             get_kv_class)
from sglang.srt.server_args import ServerArgs


class Prefill(SchedulerDisaggregationPrefillMixin):
    """SGLang's scheduler as far as its prefill queues see it. What is computed is known bytes."""

    def __init__(self, settings, plan, has_bootstrap_server):
        backend = TransferBackend(settings.disaggregation_transfer_backend)
        self.plan = plan
        self.port = settings.disaggregation_bootstrap_port
        if has_bootstrap_server:
            made = get_kv_class(backend, KVClassType.BOOTSTRAP_SERVER)
            self.server = made(host=world.HOST, port=self.port)
        self.pool = world.Pool(plan.layers, plan.pool_pages, plan.row_bytes // settings.attn_tp_size,
                               settings.attn_tp_rank, settings.attn_tp_size)
        self.disagg_metadata_buffers = world.metadata(plan.rows)
        arguments = world.arguments(self.pool, self.disagg_metadata_buffers, settings.tp_rank)
        self.manager = get_kv_class(backend, KVClassType.MANAGER)(
            arguments, DisaggregationMode.PREFILL, ServerArgs(), False)
        self.attn_tp_cpu_group = settings.attn_tp_group.cpu_group
        self.attn_cp_cpu_group = None
        self.req_to_metadata_buffer_idx_allocator = ReqToMetadataIdxAllocator(plan.rows)
        self.disagg_prefill_bootstrap_queue = self._queue(backend, plan)
        self.disagg_prefill_inflight_queue = []
        self.disagg_prefill_pending_chunk_rids = set()
        self.waiting_queue = []
        self.processed_tokens_counter = 0
        self.enable_staging = self.enable_overlap = False
        self.kv_checksum_computer = None
        self.tree_cache = types.SimpleNamespace(release=self._release, finish=lambda *_: None,
                                                disable=True)
        self.output_streamer = types.SimpleNamespace(stream_output=lambda *_, **__: None)
        self.metrics_reporter = types.SimpleNamespace(enable_metrics=False)
        self.token_to_kv_pool_allocator = types.SimpleNamespace(
            page_size=world.PAGE_TOKENS, translate_kv_indices_for_transfer=lambda tokens: tokens)
        self.req_to_token_pool = types.SimpleNamespace(req_to_token=_TokenRows(),
                                                       available_size=lambda: 1)
        self.batch_result_processor = types.SimpleNamespace()

    def _queue(self, backend, plan):
        queue = object.__new__(PrefillBootstrapQueue)
        queue.kv_manager, queue.transfer_backend = self.manager, backend
        queue.bootstrap_port = self.port
        queue.scheduler, queue.queue, queue.pp_size, queue.pp_rank = self, [], 1, 0
        queue.max_input_len = plan.pool_pages * world.PAGE_TOKENS
        queue.req_to_metadata_buffer_idx_allocator = self.req_to_metadata_buffer_idx_allocator
        return queue

    def _release_aborted_request(self, req):
        """Of a request that some queue still holds; none does here."""

    def _release(self, req):
        self.pool.free.extend(req.kv.pages)
        req.kv.pages, req.kv.holds_kv = None, False
        self.req_to_token_pool.req_to_token.rows.pop(req.kv.req_pool_idx, None)

    def open(self, number):
        room = self.plan.room(number)
        req = world.request(room, self.plan.tokens(number), self.port)
        req.plan_number = number
        self.disagg_prefill_bootstrap_queue.add(req, num_kv_heads=1)
        if self.plan.abort_of(number) == "prefill early":
            req.disagg_kv_sender.abort()
        return req

    def compute(self, req):
        """The forward pass, in as many chunks as the plan says; then all is on its way."""
        number, room = req.plan_number, req.bootstrap_room
        prefix = req.disagg_decode_prefix_len // world.PAGE_TOKENS
        pages = self.pool.take(self.plan.pages(number))
        if pages is None:
            raise RuntimeError("the prefill pool is too small for the plan")
        req.kv.pages, req.kv.holds_kv, req.kv.req_pool_idx = pages, True, room
        self.req_to_token_pool.req_to_token.rows[room] = world.token_row(pages)
        self.pool.fill(room, 0, pages)
        req.output_ids = [world.first_token(room)]
        for i, array in enumerate(world.metadata_arrays(self.disagg_metadata_buffers)):
            array[req.metadata_buffer_index] = world.expected_row(room, i, array).view(
                array.dtype)[:array.shape[1]]
        if self.plan.is_chunked(number) and len(pages) - prefix > 1:
            self.send_kv_chunk(req, last_chunk=False,
                               end_idx=(prefix + (len(pages) - prefix) // 2) * world.PAGE_TOKENS)
        self.disagg_prefill_inflight_queue.append(req)
        self.send_kv_chunk(req, last_chunk=True)
        if self.plan.abort_of(number) == "prefill late":
            req.disagg_kv_sender.abort()

    def turn(self):
        """One turn of the event loop. Returns the requests that ended."""
        before = list(self.disagg_prefill_bootstrap_queue.queue)
        started = self.disagg_prefill_bootstrap_queue.pop_bootstrapped()
        for req in started:
            self.compute(req)
        left = {id(req) for req in self.disagg_prefill_bootstrap_queue.queue}
        begun = {id(req) for req in started}
        refused = [req for req in before if id(req) not in left and id(req) not in begun]
        return refused + self.process_disagg_prefill_inflight_queue()

    def check(self, _ended):
        return []

    def quiet(self):
        self.manager.pump()
        return self.manager.rows.in_use == 0


class _TokenRows:
    """SGLang's req_to_token: rows of token numbers by the request's row number."""

    def __init__(self):
        self.rows = {}

    def __getitem__(self, where):
        row, tokens = where
        return self.rows[row][tokens]
