"""Makes SGLang 0.5.23's disaggregation schedulers run on a host without PyTorch and GPU.

SGLang's files of sglang.srt.disaggregation, its plug-in framework, environment, network helpers and
argument choices are used as they are. What stands in for something else: PyTorch (host_torch.py), the
configuration (bench/peers/sglang_cpu.py), and the packages of the model's side (memory pools, batches,
metrics), inert apart from the few functions below.
"""

import importlib
import importlib.abc
import importlib.machinery
import pathlib
import sys
from dataclasses import dataclass

PEERS = pathlib.Path(__file__).resolve().parents[3] / "bench" / "peers"
sys.path.insert(0, str(PEERS))

import host_torch  # noqa: E402
import sglang_cpu  # noqa: E402

INERT = ("batch_overlap", "beam_search", "configs", "constants", "constrained", "dllm",
         "hardware_backend", "layers", "lora", "managers", "mem_cache", "model_executor",
         "model_loader", "observability", "sampling", "session", "speculative",
         "utils.torch_memory_saver_adapter")


class _InertFinder(importlib.abc.MetaPathFinder):
    def find_spec(self, fullname, path, target=None):
        inside = any(fullname == f"sglang.srt.{name}" or fullname.startswith(f"sglang.srt.{name}.")
                     for name in INERT)
        if not inside and fullname != "sglang.utils":
            return None
        return importlib.machinery.ModuleSpec(fullname, sglang_cpu._MissingLoader(),
                                              is_package=True)


@dataclass
class FinishAbort:
    message: str
    status_code: int | None = None


@dataclass
class FinishLength:
    length: int


def _release_kv_cache(req, tree_cache, checkpoint=False):
    """Where SGLang gives the pages of a request back to its allocator."""
    tree_cache.release(req)


def _set_names():
    batch = importlib.import_module("sglang.srt.managers.schedule_batch")
    batch.FINISH_ABORT, batch.FINISH_LENGTH = FinishAbort, FinishLength
    common = importlib.import_module("sglang.srt.mem_cache.common")
    common.kv_to_page_indices = lambda tokens, page: (tokens[::page] // page).cpu().numpy()
    common.kv_to_page_num = lambda tokens, page: -(-tokens // page)
    common.page_align_floor = lambda length, page: length // page * page
    common.release_kv_cache = _release_kv_cache


def load(*, bootstrap_port, backend, tp_rank=0, tp_size=1, links=(), schedulers=True):
    """Returns SGLang's settings, as a process of a server with these flags has them.

    schedulers: imports the modules that a scheduler process has imported before plug-ins are loaded.
    """
    sys.meta_path.insert(0, _InertFinder())
    host_torch.install(sglang_cpu._InertModule)
    sglang_cpu.load(bootstrap_port)
    _set_names()
    settings = sys.modules["sglang.srt.runtime_context"].get_parallel()
    group = host_torch.Group(links)
    settings.attn_tp_size, settings.attn_tp_rank = tp_size, tp_rank
    settings.tp_size, settings.tp_rank = tp_size, tp_rank
    settings.dp_rank = 0
    settings.attn_tp_group = type("GroupOfRanks", (), {"cpu_group": group})()
    settings.disaggregation_transfer_backend = backend
    settings.disaggregation_decode_host_receive_threshold = 1.0
    settings.optimistic_prefill_attempts = 0
    settings.num_reserved_decode_tokens = 0
    if schedulers:
        for name in ("decode", "prefill"):
            importlib.import_module(f"sglang.srt.disaggregation.{name}")
    return settings

