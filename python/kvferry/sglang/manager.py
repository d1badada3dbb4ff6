"""One per SGLang rank: owns kvferry's manager, the metadata slots and the pump of released pages.

Threads: SGLang's scheduler thread calls everything; what asks servers over HTTP runs on a small pool
of its own. No call waits for a peer. kvferry's threads need no Python.

What comes back from kvferry is collected by one pump (pump()), on the scheduler's thread where rooms
open, end and are held; so a page is told free to SGLang on the thread that frees it, and no second
thread takes part.
"""

import logging
import os
import secrets
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import kvferry
import requests
from sglang.srt.disaggregation.base.conn import BaseKVManager
from sglang.srt.disaggregation.utils import DisaggregationMode
from sglang.srt.environ import envs
from sglang.srt.runtime_context import get_device, get_disagg, get_parallel, get_serving
from sglang.srt.utils.network import NetworkAddress, get_local_ip_auto

from kvferry.sglang import layout, release_timer, settings, topology
from kvferry.sglang.layout import Rank, Refused
from kvferry.sglang.metadata import MetadataRows

logger = logging.getLogger(__name__)

PREFILL_INSTANCE = "sglang"  # a registry is one prefill server's own, so it lists one instance
POOL_THREADS = 16
EPOCH_VARIABLE = "KVFERRY_ENGINE_EPOCH"
MODEL_VARIABLE = "KVFERRY_MODEL_FINGERPRINT"
MAX_ROOM = 2**64 - 1
# First causes after which what is known of a prefill server may be out of date.
_DOUBTS = {kvferry.FailureCode.PeerLost, kvferry.FailureCode.PeerRestarted,
           kvferry.FailureCode.PeerUnreachable, kvferry.FailureCode.PrefillUnknown,
           kvferry.FailureCode.BootstrapFailed, kvferry.FailureCode.EngineEpochMismatch,
           kvferry.FailureCode.LayoutMismatch, kvferry.FailureCode.DoneMismatch}


def check_room(room: int | None) -> str | None:
    """Returns why a room number can't be used. SGLang reads 0 in a metadata row as 'not yet there',
    and would wait for ever."""
    if room is None or not 1 <= room <= MAX_ROOM:
        return f"bootstrap room {room}: a room is a number from 1 to {MAX_ROOM}"
    return None


def first_cause(own: str | None, core: kvferry.KvSender | kvferry.KvReceiver | None
                ) -> tuple[str | None, bool]:
    """Returns why a room failed, and whether neither side of it knows: then another rank did.

    own: what the plug-in itself refused it for, which comes before what kvferry says."""
    if own is not None or core is None:
        return own, False
    cause = core.failure()
    return (None, True) if cause is None else (str(cause), False)


class KvferryKVManager(BaseKVManager):
    supports_deferred_decode_kv_release = True
    supports_host_destination = False
    supports_role_switch = False
    # Members that SGLang's schedulers look at whatever the backend is.
    enable_all_cp_ranks_for_transfer = False
    is_dummy_cp_rank = False
    enable_staging = False
    defer_decode_allocation = False
    _staging_handler = None
    _staging_ctx = None

    def __init__(self, args: Any, disaggregation_mode: DisaggregationMode, server_args: Any,
                 is_mla_backend: bool | None = False) -> None:
        """args: SGLang's KVArgs. Raises Refused for a configuration that kvferry does not carry and
        kvferry.KvferryError for what the host lacks; SGLang then stops, with the text."""
        self.kv_args = args
        self.disaggregation_mode = disaggregation_mode
        self.server_args = server_args
        self.is_mla_backend = bool(is_mla_backend)
        self.enable_deferred_decode_kv_release = True
        self._role = (kvferry.Role.Prefill if disaggregation_mode == DisaggregationMode.PREFILL
                      else kvferry.Role.Decode)
        parallel = get_parallel()
        self._policy = get_disagg().disaggregation_decode_allocation_policy
        self._check(parallel)
        self.rank = _rank(args, parallel)
        self.attn_tp_size, self.attn_tp_rank = self.rank.tp_size, self.rank.tp_rank
        self.attn_dp_rank = parallel.attn_dp_rank
        self._pool: ThreadPoolExecutor | None = None
        self._pool_lock = threading.Lock()
        self._held: dict[int, int] = {}  # receiver -> room, while kvferry has its pages
        self._held_rooms: dict[int, int] = {}  # room -> receivers of it in _held
        self._slots: dict[int, int] = {}  # sender or receiver -> metadata slot
        self.rows = MetadataRows(args.aux_data_ptrs, args.aux_item_lens, args.aux_data_lens)
        self.transfer_infos: dict[int, Any] = {}  # of SGLang's staging; stays empty
        registry = self._own_registry(parallel) if self._role == kvferry.Role.Prefill else None
        self.core = self._make_core(parallel, registry)
        self._registration: topology.Registration | None = None
        self.prefills = topology.PrefillTable(self._fits(), self._executor)
        self.prefill_info_table = self.prefills.servers
        if registry is not None:
            self._registry = registry
            self.register_to_bootstrap()

    # --- start ---

    def _check(self, parallel: Any) -> None:
        layout.check(self.kv_args, parallel, self._policy)
        problems = settings.check_required()
        if self._role == kvferry.Role.Decode and not (release_timer.is_overruled()
                                                      or settings.release_timer_is_off()):
            problems.append(f"SGLang would free pages after {settings.value(settings.RELEASE_TIMER)} "
                            "s without proof, since the plug-in's hook is not in force here: set "
                            f"{settings.RELEASE_TIMER}=inf")
        if problems:
            raise Refused("; ".join(problems))

    def _own_registry(self, parallel: Any) -> NetworkAddress:
        """Where this prefill server's bootstrap server is, as SGLang finds it."""
        port = get_disagg().disaggregation_bootstrap_port
        if parallel.dist_init_addr:
            if parallel.nnodes > 1 and parallel.world_group is not None:
                # The first node's port, which it may have chosen for itself.
                port = parallel.world_group.broadcast_object(port, src=0)
            return NetworkAddress(NetworkAddress.parse(parallel.dist_init_addr).resolved().host,
                                  port)
        host = get_serving().host
        return NetworkAddress({"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host), port)

    def _make_core(self, parallel: Any, registry: NetworkAddress | None) -> kvferry.KvManager:
        device = get_device().device
        arguments = layout.kv_args(
            self.kv_args, self._role, self.rank, is_mla=self.is_mla_backend, device=device,
            engine_epoch=_engine_epoch(self.rank, parallel),
            instance=PREFILL_INSTANCE if registry is not None else "",
            model=os.environ.get(MODEL_VARIABLE, ""), aux=[self.rows.region()])
        given: dict[str, Any] = {"control_host": get_local_ip_auto()}
        if registry is not None:
            given["bootstrap_addresses"] = [registry.to_host_port_str()]
        options = settings.options_for(self._role, given)
        if registry is None and not (options.bootstrap_allow or options.bootstrap_addresses):
            raise Refused("a decode server must be told which prefill servers a request may name: "
                          "set KVFERRY_BOOTSTRAP_ALLOW to their bootstrap addresses, host:port with "
                          "commas between them")
        try:
            return kvferry.KvManager(arguments, options)
        except kvferry.KvferryError as error:
            if device in layout.HOST_DEVICES:
                raise
            raise Refused(f"the KV pool is in the memory of device '{device}': {error}. Use a "
                          "backend that moves it (mooncake, nixl), or --device cpu") from error

    def _fits(self) -> topology.Decode:
        return topology.Decode(
            self.attn_tp_size, self.kv_args.page_size, self.kv_args.kv_cache_dtype_str,
            self.kv_args.kv_layout,
            layout.splits_rows(self.kv_args, self.is_mla_backend, self.attn_tp_size))

    def register_to_bootstrap(self) -> None:
        """Tells the bootstrap server of this rank, in the background, until it is accepted."""
        endpoint = NetworkAddress.parse(self.core.control_endpoint())
        row = topology.registry_row(self.kv_args, self.rank, get_parallel(), get_serving(),
                                    self._policy, (endpoint.host, endpoint.port))
        self._registration = topology.Registration(f"{self._registry.to_url()}/route", row)

    # --- pages and slots: the scheduler's thread ---

    def pump(self) -> None:
        """Collects what kvferry has given back."""
        for released in self.core.take_released():
            self.settle(released.owner)

    def hold(self, owner: int, room: int, slot: int) -> None:
        """Notes that kvferry has the pages and the slot of a receiver."""
        self._held[owner] = room
        self._held_rooms[room] = self._held_rooms.get(room, 0) + 1
        self._slots[owner] = slot

    def own_slot(self, owner: int, slot: int) -> None:
        """Notes that kvferry has a sender's slot."""
        self._slots[owner] = slot

    def settle(self, owner: int) -> None:
        """Notes that a handle's pages and slot are kvferry's no more. Idempotent."""
        slot = self._slots.pop(owner, None)
        if slot is not None:
            self.rows.give_back(slot)
        room = self._held.pop(owner, None)
        if room is None:
            return
        left = self._held_rooms[room] - 1
        if left:
            self._held_rooms[room] = left
        else:
            del self._held_rooms[room]

    @property
    def held_receivers(self) -> int:
        """Receivers whose pages kvferry has."""
        return len(self._held)

    def is_abort_release_safe(self, bootstrap_room: int, required_acks: int) -> bool:
        """Whether kvferry has given back all pages of failed receivers of this room.

        required_acks is SGLang's count of prefill ranks that must answer; here the fence is local and
        needs none."""
        self.pump()
        return bootstrap_room not in self._held_rooms

    def clear_deferred_abort_state(self, bootstrap_room: int) -> None:
        """Nothing is kept by room number that pump() does not remove."""

    def should_verify_kv_checksum(self, bootstrap_addr: str) -> bool:
        """Prefill's digest covers its own heads: comparable between equal sizes only."""
        info = self.prefills.servers.get(bootstrap_addr)
        return info is not None and info.attn_tp_size == self.attn_tp_size

    # --- prefill servers ---

    def try_ensure_parallel_info(self, bootstrap_addr: str) -> bool:
        """Whether this prefill server's shape is known; else it is asked in the background. A server
        that does not fit is known, too: its rooms fail with the reason."""
        return self.prefills.want(bootstrap_addr)

    def note_failure(self, bootstrap_addr: str, cause: kvferry.Failure | None) -> None:
        if cause is not None and cause.code in _DOUBTS:
            self.prefills.ask(bootstrap_addr)

    def note_prefill_dp_rank(self, sender: Any, was_routed: bool) -> str | None:
        """Tells the bootstrap server which data-parallel rank has this room, where decode can't know.

        Returns why the room can't be found, when it was dispatched against the rule."""
        parallel = get_parallel()
        if parallel.num_dp_ranks <= 1 or was_routed:
            return None
        follows = (parallel.load_balance_method == "follow_bootstrap_room"
                   and not envs.SGLANG_DISAGGREGATION_FORCE_QUERY_PREFILL_DP_RANK.get())
        if not follows:
            self._executor().submit(_register_dp_rank, sender.bootstrap_server_url,
                                    sender.bootstrap_room, self.attn_dp_rank)
            return None
        wanted = sender.bootstrap_room % parallel.num_dp_ranks
        if wanted == self.attn_dp_rank:
            return None
        return (f"room {sender.bootstrap_room} belongs to data-parallel rank {wanted} by "
                f"follow_bootstrap_room, but was dispatched to rank {self.attn_dp_rank}: set "
                "SGLANG_DISAGGREGATION_FORCE_QUERY_PREFILL_DP_RANK=1 to allow it")

    def submit_prefill_recompute(self, kv_receiver: Any, payload: dict[str, Any]) -> None:
        """Asks the prefill server to compute a retracted request again, in the background; one rank
        of the engine does. A refusal fails the receiver at its next poll."""
        if self.attn_tp_rank != 0:
            return
        info = self.prefills.servers.get(kv_receiver.bootstrap_addr)
        if info is None or info.prefill_http_port is None:
            kv_receiver.doom("the prefill server's HTTP port is not known, so that it can't be asked "
                             "to compute the request again")
            return
        host = NetworkAddress.parse(kv_receiver.bootstrap_addr).host
        url = NetworkAddress(host, info.prefill_http_port).to_url() + "/generate"
        self._executor().submit(_recompute, kv_receiver, url, payload,
                                envs.SGLANG_DISAGGREGATION_WAITING_TIMEOUT.get())

    def _executor(self) -> ThreadPoolExecutor:
        with self._pool_lock:
            if self._pool is None:
                threads = envs.SGLANG_DISAGGREGATION_THREAD_POOL_SIZE.get() or POOL_THREADS
                self._pool = ThreadPoolExecutor(max(1, threads), thread_name_prefix="kvferry-http")
            return self._pool

    # SGLang's decode scheduler puts its own look-ups on this pool, by this name.
    _ensure_prefill_recompute_executor = _executor

    # --- end ---

    def deregister_buffer_to_engine(self) -> None:
        """SGLang is about to unmap the KV pool, which kvferry's threads may be reading."""
        raise RuntimeError("kvferry can't let go of its memory while it runs: "
                           "release_memory_occupation does not work with this backend; stop the "
                           "server instead")

    def teardown(self) -> None:
        """Fails all rooms and ends the threads. Idempotent."""
        if self._registration is not None:
            self._registration.stop()
        self.core.stop()
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)


def _rank(arguments: Any, parallel: Any) -> Rank:
    """As SGLang's bootstrap registry numbers ranks: replicas by the system's data-parallel rank where
    it has several, else by attention's."""
    if parallel.dp_size == 1:
        return Rank(parallel.attn_tp_rank, parallel.attn_tp_size, parallel.attn_dp_rank,
                    parallel.attn_dp_size)
    return Rank(parallel.attn_tp_rank, parallel.attn_tp_size, arguments.system_dp_rank or 0,
                parallel.dp_size)


def _engine_epoch(rank: Rank, parallel: Any) -> int:
    """One number for all ranks of this launch: the first rank draws it for its world group."""
    text = os.environ.get(EPOCH_VARIABLE)
    if text:
        return int(text)
    if rank.tp_size == 1 and rank.dp_size == 1:
        return 0  # kvferry draws it
    drawn = secrets.randbits(63) | 1
    if rank.tp_size == 1 and parallel.world_group is None:
        return drawn  # a replica of one rank
    if parallel.world_group is None:
        raise Refused(f"{rank.tp_size} tensor-parallel ranks have no process group to agree on a "
                      f"launch number: set {EPOCH_VARIABLE} to one number per launch on all of them")
    return int(parallel.world_group.broadcast_object(drawn, src=0))


def _register_dp_rank(address: str, room: int, dp_rank: int) -> None:
    try:
        response = requests.post(f"http://{address}/register_dp_rank",
                                 json={"bootstrap_room": room, "dp_rank": dp_rank},
                                 timeout=topology.FETCH_SECONDS)
        if response.status_code != 200:
            logger.error("room %d: %s refuses its data-parallel rank: %d", room, address,
                         response.status_code)
    except requests.RequestException as error:
        logger.error("room %d: %s can't be told its data-parallel rank: %s", room, address, error)


def _recompute(receiver: Any, url: str, payload: dict[str, Any], seconds: float) -> None:
    try:
        response = requests.post(url, json=payload, timeout=seconds)
        if response.status_code >= 400:
            receiver.doom(f"prefill refused to compute the request again: {response.status_code} "
                          f"{response.text[:256]}")
    except requests.RequestException as error:
        receiver.doom(f"prefill can't be asked to compute the request again: {error}")
