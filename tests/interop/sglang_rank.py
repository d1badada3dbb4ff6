"""One rank of real SGLang 0.5.23 in this process: its bootstrap server, manager, senders, receivers.

Runs on Python of .cache/venv-peer-sglang. SGLang's disaggregation classes are used as they are;
bench/peers/sglang_cpu.py says what stands in for the rest of it. One backend and one set of sizes
for each process, since SGLang keeps both in module state.
"""

import importlib
import logging
import os
import pathlib
import sys
import time
from typing import Any, Callable

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench" / "peers"))

import sglang_cpu  # noqa: E402

PAGE_TOKENS = 16
ITEM_BYTES = 256
LAYERS = 2
PAGES = 32
AUX_SLOTS = 4
BACKEND = "mooncake"
ENGINE = "null"  # of Mooncake; or "vm", which moves bytes
AUX_BYTES = (64, 64, 64, 64, 512, 512, 64)  # the room number comes last
WAIT_SECONDS = 20.0

PREFIX = {"mooncake": "Mooncake", "nixl": "Nixl", "mori": "Mori"}


def use_packages_of(venv: str) -> None:
    """Makes what another of the project's environments has importable, after this one's own."""
    folder = ROOT / ".cache" / venv / "lib" / f"python3.{sys.version_info.minor}" / "site-packages"
    sys.path.append(str(folder))


def use_nixl() -> None:
    """Makes NIXL importable, with agents that speak over the loopback device. (An agent's metadata
    has its host's addresses, of which others are not to be told.)"""
    os.environ["UCX_TLS"], os.environ["UCX_NET_DEVICES"] = "tcp", "lo"
    use_packages_of("venv-peer-nixl")


def load(backend: str, bootstrap_port: int, **settings: Any) -> Any:
    """Returns SGLang's module of the backend. settings override those of sglang_cpu."""
    if backend == "mori":
        sglang_cpu.MISSING += ("mori", "msgpack")
    sglang_cpu.load(bootstrap_port)
    # Put there by a part of SGLang that is not loaded.
    logging.Logger.warning_once = lambda self, text, *values: self.warning(text, *values)
    if backend == "nixl":
        use_nixl()
        sys.modules["nixl"] = importlib.import_module("nixl_cu12")
        sys.modules["nixl._api"] = importlib.import_module("nixl_cu12._api")
    current = sys.modules["sglang.srt.runtime_context"].get_parallel()
    for name, value in settings.items():
        if not hasattr(current, name):
            raise KeyError(f"SGLang's settings have no {name}")
        setattr(current, name, value)
    return importlib.import_module(f"sglang.srt.disaggregation.{backend}.conn")


def kv_args(tp_rank: int = 0, **overrides: Any) -> Any:
    """KVArgs of a small pool in this process's memory; it lives as long as the result."""
    import numpy
    from sglang.srt.disaggregation.base.conn import KVArgs
    kv = [numpy.zeros(PAGES * ITEM_BYTES, numpy.uint8) for _ in range(2 * LAYERS)]
    aux = [numpy.zeros(AUX_SLOTS * size, numpy.uint8) for size in AUX_BYTES]
    arguments = sglang_cpu.fill_kv_args(
        KVArgs(), kv, aux, item_bytes=ITEM_BYTES, aux_bytes=AUX_BYTES, layers=LAYERS,
        page_tokens=PAGE_TOKENS, **{"engine_rank": tp_rank} | overrides)
    arguments.memory = (kv, aux)
    return arguments


def manager(module: Any, backend: str, role: str, arguments: Any, is_mla: bool = False) -> Any:
    from sglang.srt.disaggregation.utils import DisaggregationMode
    from sglang.srt.server_args import ServerArgs
    kind = getattr(module, f"{PREFIX[backend]}KVManager")
    return kind(arguments, DisaggregationMode[role.upper()], ServerArgs(), is_mla)


def part(module: Any, backend: str, name: str) -> Any:
    """The backend's Sender, Receiver or BootstrapServer class."""
    return getattr(module, f"{PREFIX[backend]}KV{name}")


def wait_for(what: str, condition: Callable[[], Any]) -> Any:
    """SGLang has nothing to wait on, so its state is asked again and again."""
    end = time.monotonic() + WAIT_SECONDS
    while not (value := condition()):
        if time.monotonic() >= end:
            raise TimeoutError(f"SGLang: {what} did not happen in {WAIT_SECONDS} s")
        time.sleep(0.005)
    return value


def leave(code: int = 0) -> None:
    """SGLang's threads do not end by themselves."""
    sys.stdout.flush()
    os._exit(code)
