"""Prefill side of one room, as SGLang's scheduler drives it.

Threads: the scheduler's; no method waits. Ownership: SGLang frees a failed request's source pages at
once. That is safe: once a sender reads Failed it will never commit, so what is read of reused pages
can only reach pages of the failed room, which decode keeps from use until they are fenced.
"""

import time
from collections.abc import Sequence
from typing import Any, NoReturn

import kvferry
from sglang.srt.disaggregation.base.conn import BaseKVSender, KVTransferMetric
from sglang.srt.disaggregation.common.conn import KVTransferError

from kvferry.sglang import binding
from kvferry.sglang.layout import state_slots
from kvferry.sglang.manager import KvferryKVManager, check_room, first_cause

Failed = kvferry.KvPoll.Failed
Success = kvferry.KvPoll.Success


class KvferryKVSender(BaseKVSender):
    def __init__(self, mgr: KvferryKVManager, bootstrap_addr: str, bootstrap_room: int,
                 req_has_disagg_prefill_dp_rank: bool = False) -> None:
        self.kv_mgr = mgr
        self.bootstrap_room = bootstrap_room
        self.bootstrap_server_url = bootstrap_addr
        self.conclude_state: int | None = None
        self._early_send_wait_event: Any = None  # set by SGLang's scheduler
        self._failure: str | None = check_room(bootstrap_room)
        self._slot: int | None = None
        self._row: int | None = None
        self._pages = 0
        self._sent = 0
        self._started: float | None = None
        self._metric = KVTransferMetric()
        self._binding = binding.derive(bootstrap_addr, bootstrap_room or 0)
        self._core: kvferry.KvSender | None = None
        if self._failure is None:
            self._failure = mgr.note_prefill_dp_rank(self, req_has_disagg_prefill_dp_rank)
        if self._failure is not None:
            self.conclude_state = Failed
            return
        # First of all, so that the grant that waits for it is here when SGLang polls.
        self._core = kvferry.KvSender(mgr.core, bootstrap_room, self._binding)
        mgr.pump()

    def init(self, num_kv_indices: int, aux_index: int | None = None) -> None:
        """num_kv_indices: pages that will be sent in all. aux_index: this request's metadata row."""
        if self.conclude_state is not None or self._core is None:
            return
        self._pages, self._row = num_kv_indices, aux_index
        self._slot = self.kv_mgr.rows.take()
        if self._slot is None:
            self._fail(f"all {self.kv_mgr.rows.slots} metadata slots are in use")
            return
        try:
            self._core.init(num_kv_indices, self._slot)
            self.kv_mgr.own_slot(self._core.id(), self._slot)
        except kvferry.KvferryError as error:
            self.kv_mgr.rows.give_back(self._slot)
            self._slot = None
            self._fail(str(error))

    def send(self, kv_indices: Any, state_indices: Sequence[Any] | None = None,
             num_kv_tokens: int | None = None, indices_event: Any = None) -> None:
        """Sends the next pages (an array of int32); the call that completes their number is the last
        one, and the metadata row and the state go with it."""
        if self.conclude_state is not None or self._core is None or self._slot is None:
            return
        if self._sent == self._pages and self._pages > 0:
            return  # an empty last chunk: all went with the one before
        if self._early_send_wait_event is not None:
            # Of a host without a device it is done when it is recorded.
            self._early_send_wait_event.synchronize()
            self._early_send_wait_event = None
        if self._started is None:
            self._started = time.perf_counter()
        is_last = self._sent + len(kv_indices) == self._pages
        try:
            if is_last:
                row, rows = self._row or 0, self.kv_mgr.rows
                self.kv_mgr.core.write_aux(self._slot, self.bootstrap_room, self._binding,
                                           rows.record(row))
                rows.write(self._slot, row)
            self._core.send(kv_indices, state_slots(state_indices) if is_last else ())
            self._sent += len(kv_indices)
        except kvferry.KvferryError as error:
            self._fail(str(error))

    def poll(self) -> int:
        if self.conclude_state is not None or self._core is None:
            return Failed if self.conclude_state is None else self.conclude_state
        status = self._core.poll()
        if status is Success or status is Failed:
            self.conclude_state = status
            if status is Success and self._started is not None:
                self._metric.transfer_latency_s = time.perf_counter() - self._started
        return status

    def poll_pp_consensus(self) -> int:
        return self.poll()

    def pop_decode_prefix_len(self) -> int:
        """Tokens that decode has already."""
        if self._core is None:
            return 0
        return self._core.decode_prefix_pages() * self.kv_mgr.kv_args.page_size

    def get_max_transfer_tokens(self) -> int | None:
        return None

    def should_send_kv_chunk(self, num_pages: int, last_chunk: bool) -> bool:
        return num_pages > 0 or last_chunk

    def mark_prefill_complete(self) -> None:
        """Of an allocation policy that is refused at start; health checks call it under any."""

    def get_transfer_metric(self) -> KVTransferMetric:
        if self._core is not None:
            self._metric.transfer_total_bytes = self._core.landed_bytes()
        return self._metric

    def abort(self) -> None:
        if self._core is not None:
            self._core.abort("aborted by SGLang's prefill scheduler")
        self.conclude_state = Failed

    def clear(self) -> None:
        if self._core is not None:
            self._metric.transfer_total_bytes = self._core.landed_bytes()
            if self.conclude_state is None:
                self.conclude_state = self._core.poll()
            self._core.clear()
        self.kv_mgr.pump()

    def failure_exception(self) -> NoReturn:
        failure, other_rank = first_cause(self._failure, self._core)
        if self._failure is None and self._core is not None:
            self._core.abort("failed on another rank")
        self.conclude_state = Failed
        raise KVTransferError(self.bootstrap_room, failure or "failed on another rank", other_rank)

    def _fail(self, why: str) -> None:
        self._failure = self._failure or why
        self.conclude_state = Failed
        if self._core is not None:
            self._core.abort(why)
