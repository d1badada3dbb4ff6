"""What a decode rank knows of prefill servers, and what a prefill rank tells of its own.

SGLang's scheduler wants the shape of a prefill server (ranks, data-parallel rule, page size) before it
opens a room there, and asks for it by the server's bootstrap address on its own thread. So answers are
fetched in the background by SGLang's own route (GET /route with four times -1), and the scheduler's
question is a look at a table; it asks again each second. Which ranks there are, their addresses and
keys, kvferry's registry says, not this.
"""

import dataclasses
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any

import requests
from sglang.srt.disaggregation.common.conn import PrefillServerInfo

from kvferry.sglang.layout import Rank

logger = logging.getLogger(__name__)

FETCH_SECONDS = 5
REGISTER_FIRST_PAUSE = 0.2
REGISTER_LAST_PAUSE = 5.0
_QUESTION = {"prefill_dp_rank": -1, "prefill_cp_rank": -1, "target_tp_rank": -1,
             "target_pp_rank": -1}
_FIELDS = {each.name for each in dataclasses.fields(PrefillServerInfo)}


@dataclasses.dataclass(frozen=True)
class Decode:
    """What of a decode rank a prefill server must fit."""

    tp_size: int
    page_size: int
    kv_cache_dtype: str
    kv_layout: str | None
    splits_rows: bool  # pieces of pages can go to ranks of another tensor-parallel size


def find_fault(info: PrefillServerInfo, decode: Decode) -> str | None:
    """Returns why rooms of this server can't be carried, with what to change; None when they can."""
    for what, flag, theirs, ours in (
            ("page size", "--page-size", info.page_size, decode.page_size),
            ("KV cache dtype", "--kv-cache-dtype", info.kv_cache_dtype, decode.kv_cache_dtype),
            ("KV layout", "the attention backend", info.kv_layout, decode.kv_layout)):
        if theirs is not None and ours is not None and theirs != ours:
            return (f"{what} is {theirs} at prefill and {ours} at decode: both servers need the "
                    f"same ({flag})")
    if info.pp_size != 1 or info.attn_cp_size != 1:
        return (f"prefill has {info.pp_size} pipeline stages and {info.attn_cp_size} context-parallel "
                "ranks, this backend carries 1 of each")
    more, fewer = max(info.attn_tp_size, decode.tp_size), min(info.attn_tp_size, decode.tp_size)
    if fewer < 1 or more % fewer != 0:
        return (f"tensor-parallel sizes {info.attn_tp_size} (prefill) and {decode.tp_size} (decode): "
                "one must be a multiple of the other")
    if more != fewer and not decode.splits_rows:
        return (f"this model's KV pool moves in whole pages, between equal tensor-parallel sizes "
                f"only: prefill has {info.attn_tp_size}, decode {decode.tp_size}")
    return None


def expected_grants(info: PrefillServerInfo, tp_size: int) -> int:
    """How many decode ranks grant to one prefill rank."""
    return max(1, tp_size // info.attn_tp_size)


def writer_count(info: PrefillServerInfo, tp_size: int) -> int:
    """How many prefill ranks write to one decode rank."""
    return max(1, info.attn_tp_size // tp_size)


class PrefillTable:
    """Prefill servers by bootstrap address. Threads: any; nothing here waits."""

    def __init__(self, decode: Decode, executor: Callable[[], Executor]) -> None:
        self.servers: dict[str, PrefillServerInfo] = {}  # as SGLang's scheduler reads it
        self.faults: dict[str, str] = {}
        self._decode = decode
        self._executor = executor
        self._lock = threading.Lock()
        self._fetching: set[str] = set()
        self._proven: set[str] = set()  # the last room that ended there succeeded

    def prove(self, address: str) -> None:
        self._proven.add(address)

    def is_proven(self, address: str) -> bool:
        """Whether the last room of this server that ended for its own reasons succeeded."""
        return address in self._proven

    def want(self, address: str) -> bool:
        """Whether the server is known; when it is not, it is asked."""
        if address in self.servers:
            return True
        self.ask(address)
        return False

    def ask(self, address: str) -> None:
        """Asks the server in the background; until it answers, what is known of it stays."""
        self._proven.discard(address)
        with self._lock:
            if address in self._fetching:
                return
            self._fetching.add(address)
        try:
            self._executor().submit(self._fetch, address)
        except RuntimeError:  # the interpreter is about to end
            self._done(address)

    def _done(self, address: str) -> None:
        with self._lock:
            self._fetching.discard(address)

    def _fetch(self, address: str) -> None:
        try:
            response = requests.get(f"http://{address}/route", params=_QUESTION,
                                    timeout=FETCH_SECONDS)
            if response.status_code != 200:
                logger.warning("prefill server %s: %d %s", address, response.status_code,
                               response.text[:256])
                return
            # A newer server may say more than this version knows.
            info = PrefillServerInfo(**{name: each for name, each in response.json().items()
                                        if name in _FIELDS})
            self._store(address, info)
        except (requests.RequestException, TypeError, ValueError, AttributeError) as error:
            logger.warning("prefill server %s can't be asked for its shape: %s", address, error)
        finally:
            self._done(address)

    def _store(self, address: str, info: PrefillServerInfo) -> None:
        fault = find_fault(info, self._decode)
        if fault is None:
            self.faults.pop(address, None)
        else:
            self.faults[address] = fault
            logger.error("prefill server %s does not fit: %s", address, fault)
        self.servers[address] = info


class Registration:
    """Tells a prefill server's own bootstrap server of one rank, until it has accepted it."""

    def __init__(self, url: str, row: dict[str, Any]) -> None:
        self._url = url
        self._row = row
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kvferry-register", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()

    def _run(self) -> None:
        pause = REGISTER_FIRST_PAUSE
        while not self._stop.is_set():
            begun = time.monotonic()
            try:
                response = requests.put(self._url, json=self._row, timeout=FETCH_SECONDS)
                if response.status_code == 200:
                    return
                cause = f"{response.status_code} {response.text[:256]}"
            except requests.RequestException as error:
                cause = str(error)
            logger.warning("registration at %s failed after %.1f s, tried again in %.1f s: %s",
                           self._url, time.monotonic() - begun, pause, cause)
            self._stop.wait(pause)
            pause = min(2 * pause, REGISTER_LAST_PAUSE)


def registry_row(arguments: Any, rank: Rank, parallel: Any, serving: Any, policy: str,
                 endpoint: tuple[str, int]) -> dict[str, Any]:
    """The row that SGLang's bootstrap server takes (PUT /route), with SGLang's keys.

    endpoint: host and port of kvferry's control link.
    """
    return {
        "attn_tp_size": rank.tp_size, "attn_tp_rank": rank.tp_rank,
        "attn_cp_size": 1, "attn_cp_rank": 0,
        "attn_dp_size": parallel.attn_dp_size, "attn_dp_rank": parallel.attn_dp_rank,
        "pp_size": 1, "pp_rank": 0,
        "system_dp_size": parallel.dp_size, "system_dp_rank": arguments.system_dp_rank or 0,
        "rank_ip": endpoint[0], "rank_port": endpoint[1], "page_size": arguments.page_size,
        "kv_cache_dtype": arguments.kv_cache_dtype_str, "kv_layout": arguments.kv_layout,
        "dsv41_spec_layout": None, "load_balance_method": parallel.load_balance_method,
        "enable_dsa_cache_layer_split": False, "enable_kv_cache_sharding": False,
        "prefill_http_port": serving.port, "decode_allocation_policy": policy,
    }
