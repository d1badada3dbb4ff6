"""Decode side of one room, as SGLang's scheduler drives it.

Threads: the scheduler's, apart from doom(), which a thread that asked prefill to compute a request
again may call; no method waits.

Ownership: pages given to send_metadata() are kvferry's until poll() returns Success, or until the
manager's pump has them back. While they are, abort_notified says so to SGLang's scheduler, which then
holds the request and its pages and asks KvferryKVManager.is_abort_release_safe() in each of its loops.
"""

from collections.abc import Sequence
from typing import Any, NoReturn

import kvferry
from sglang.srt.disaggregation.base.conn import BaseKVReceiver, KVTransferDestination
from sglang.srt.disaggregation.common.conn import KVTransferError

from kvferry.sglang import binding, topology
from kvferry.sglang.layout import state_slots
from kvferry.sglang.manager import KvferryKVManager, check_room, first_cause
from kvferry.sglang.metadata import MetadataError

Failed = kvferry.KvPoll.Failed
Bootstrapping = kvferry.KvPoll.Bootstrapping
WaitingForInput = kvferry.KvPoll.WaitingForInput
Success = kvferry.KvPoll.Success


class KvferryKVReceiver(BaseKVReceiver):
    require_staging = False

    def __init__(self, mgr: KvferryKVManager, bootstrap_addr: str,
                 bootstrap_room: int | None = None) -> None:
        self.kv_mgr = mgr
        self.bootstrap_addr = bootstrap_addr
        self.bootstrap_room = bootstrap_room
        self._room = bootstrap_room or 0
        self.conclude_state: int | None = None
        self.abort_notified = False
        self.bootstrap_infos: list[dict[str, Any]] | None = None  # a row per prefill rank that writes
        self.prefill_info: Any = None
        self._failure: str | None = check_room(bootstrap_room)
        self._slot: int | None = None
        self._row: int | None = None
        self._granted = False  # pages were given and Success was not read
        self._doom: str | None = None  # the room is to fail with this at the next poll
        self._core: kvferry.KvReceiver | None = None
        if self._failure is not None:
            self.conclude_state = Failed
            return
        self._core = kvferry.KvReceiver(mgr.core, self._room,
                                        binding.derive(bootstrap_addr, self._room))
        mgr.prefills.want(bootstrap_addr)
        mgr.pump()

    @property
    def supports_host_destination(self) -> bool:
        return False

    def init(self, prefill_dp_rank: int) -> None:
        if self.conclude_state is not None or self._core is None:
            return
        info = self.kv_mgr.prefills.servers.get(self.bootstrap_addr)
        fault = self.kv_mgr.prefills.faults.get(self.bootstrap_addr)
        if info is None or fault is not None:
            self.fail(fault or f"nothing is known of prefill server {self.bootstrap_addr}")
            return
        self.prefill_info = info
        count = topology.writer_count(info, self.kv_mgr.attn_tp_size)
        self.bootstrap_infos = [{"is_dummy": False, "rank": rank} for rank in range(count)]
        try:
            self._core.init(self.bootstrap_addr, "", prefill_dp_rank)
        except kvferry.KvferryError as error:
            self.fail(str(error))

    def send_metadata(self, kv_indices: Any, aux_index: int | None = None,
                      state_indices: Sequence[Any] | None = None,
                      decode_prefix_len: int | None = None,
                      destination: KVTransferDestination = KVTransferDestination.DEVICE,
                      device_kv_indices: Any = None) -> None:
        """kv_indices: array of int32, pages past the prefix, in prompt order. aux_index: this request's metadata
        row. decode_prefix_len: tokens that are here already, whole pages."""
        if destination != KVTransferDestination.DEVICE or device_kv_indices is not None:
            raise NotImplementedError("kvferry writes to the KV pool that was registered only")
        if self.conclude_state is not None or self._core is None:
            return
        self._row = aux_index
        self._slot = self.kv_mgr.rows.take()
        if self._slot is None:
            self.fail(f"all {self.kv_mgr.rows.slots} metadata slots are in use")
            return
        grants = topology.expected_grants(self.prefill_info, self.kv_mgr.attn_tp_size)
        try:
            self._core.send_metadata(kv_indices, self._slot, state_slots(state_indices),
                                     decode_prefix_len or 0, grants)
        except kvferry.KvferryError as error:
            self.kv_mgr.rows.give_back(self._slot)
            self._slot = None
            self.fail(str(error))
            return
        self._granted = True
        self.kv_mgr.hold(self._core.id(), self._room, self._slot)

    def poll(self) -> int:
        if self.conclude_state is not None:
            return self.conclude_state
        core = self._core
        if core is None or self._doom is not None:
            self.fail(self._doom or "no room was opened")
            return Failed
        status = core.poll()
        if status is Success:
            return self._succeed(core.id())
        if status is Failed:
            self.conclude_state = status
            self.kv_mgr.note_failure(self.bootstrap_addr, core.failure())
        elif status is Bootstrapping and self._may_be_given_early():
            return WaitingForInput
        return status

    def _may_be_given_early(self) -> bool:
        """kvferry keeps metadata that comes before the session is there, which saves a turn of
        SGLang's event loop; but pages are not set aside for a server that may not answer."""
        return (self.bootstrap_infos is not None and not self._granted
                and self.kv_mgr.prefills.is_proven(self.bootstrap_addr))

    def _succeed(self, owner: int) -> int:
        """Pages and metadata slot are SGLang's now; the row is put where SGLang reads it."""
        self._granted = False
        self.conclude_state = Success
        self.kv_mgr.prefills.prove(self.bootstrap_addr)
        try:
            self.kv_mgr.rows.read(self._slot or 0, self._row or 0)
        except MetadataError as error:
            self._failure, self.conclude_state = str(error), Failed
        self.kv_mgr.settle(owner)
        return self.conclude_state

    def doom(self, why: str) -> None:
        """Fails the room at the next poll. Any thread."""
        self._doom = why

    def abort(self) -> None:
        self.fail("aborted by SGLang's decode scheduler")

    def fail(self, why: str) -> None:
        """Ends the room with this cause, unless it has one."""
        if self._core is not None and self.conclude_state != Success:
            self._core.abort(why)
            if self._core.failure() is None:
                self._failure = self._failure or why
        self.conclude_state = Failed
        self.ensure_abort_notified()

    def ensure_abort_notified(self, *, force_arm: bool = False) -> None:
        """Ends the room, if it lives, and says by abort_notified whether pages must be held."""
        if self._core is not None and self._granted:
            self._core.abort("failed at SGLang's decode scheduler")
            if self._core.poll() is Success:  # it was first: the pages are fenced, and SGLang's
                self._granted = False
                self.kv_mgr.settle(self._core.id())
        self.abort_notified = self._granted

    def clear(self) -> None:
        if self._core is not None:
            if self.conclude_state is None:
                self.conclude_state = Failed
            self._core.clear()
        self.kv_mgr.pump()

    def failure_exception(self) -> NoReturn:
        failure, other_rank = first_cause(self._failure, self._core)
        self.conclude_state = Failed
        self.ensure_abort_notified()
        raise KVTransferError(self.bootstrap_room, failure or "failed on another rank", other_rank)
