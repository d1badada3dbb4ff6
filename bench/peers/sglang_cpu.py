"""Makes the disaggregation classes of SGLang 0.5.23 importable on a host without PyTorch and GPU.

SGLang's own files of sglang.srt.disaggregation are used as they are; so are its environment and its
network helpers. What stands in for something else:

  packages that are not installed (PyTorch, ...)   modules whose every name is an inert class
  SGLang's configuration and tracing               small modules with the values of one plain rank
  Mooncake's transfer engine                       NullEngine, which says that all has arrived

Import this before anything of SGLang.
"""

import abc
import contextlib
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
import types

MISSING = ("torch", "triton", "transformers", "sgl_kernel", "PIL", "pybase64", "packaging", "torchao",
           "torchvision", "torchcodec", "huggingface_hub", "prometheus_client")


def _is_private(name):
    return name.startswith("__")


class _InertType(abc.ABCMeta):
    """A class that may be a base, an annotation, a decorator or a value, and does nothing."""

    def __getattr__(cls, name):
        if _is_private(name):
            raise AttributeError(name)
        made = _inert(f"{cls.__name__}.{name}")
        setattr(cls, name, made)
        return made

    def __call__(cls, *arguments, **named):
        plain = len(arguments) == 1 and not named
        if plain and isinstance(arguments[0], types.FunctionType):
            return arguments[0]
        if plain and isinstance(arguments[0], type) and not isinstance(arguments[0], _InertType):
            return arguments[0]
        if cls.__dict__.get("is_inert"):
            return object.__new__(_InertObject)
        return abc.ABCMeta.__call__(cls, *arguments, **named)

    def _itself(cls, *_):
        return cls

    def _no(cls, *_):
        return False

    __getitem__ = __or__ = __ror__ = __add__ = __radd__ = __sub__ = __mul__ = __truediv__ = _itself
    __neg__ = __enter__ = _itself
    __bool__ = __lt__ = __gt__ = __le__ = __ge__ = __exit__ = _no

    def __iter__(cls):
        return iter(())

    def __len__(cls):
        return 0


def _inert(name):
    def become_real(cls, **_):
        cls.is_inert = False

    return _InertType(name, (), {"is_inert": True, "__init__": lambda self, *_, **__: None,
                                 "__init_subclass__": classmethod(become_real)})


class _InertObject:
    def __getattr__(self, name):
        if _is_private(name):
            raise AttributeError(name)
        return _inert(name)

    def __call__(self, *arguments, **named):
        plain = len(arguments) == 1 and not named and callable(arguments[0])
        return arguments[0] if plain else self

    def _itself(self, *_):
        return self

    def _no(self, *_):
        return False

    __getitem__ = __or__ = __ror__ = __add__ = __radd__ = __sub__ = __mul__ = __enter__ = _itself
    __bool__ = __lt__ = __gt__ = __le__ = __ge__ = __exit__ = _no

    def __iter__(self):
        return iter(())

    def __len__(self):
        return 0

    def __mro_entries__(self, bases):
        return (_inert("Base"),)


class _InertModule(types.ModuleType):
    __path__ = []
    __all__ = []
    __version__ = "99.0.0"

    def __getattr__(self, name):
        if _is_private(name):
            raise AttributeError(name)
        made = _inert(name)
        setattr(self, name, made)
        return made


class _MissingLoader(importlib.abc.Loader):
    def create_module(self, spec):
        return _InertModule(spec.name)

    def exec_module(self, module):
        pass


class _MissingFinder(importlib.abc.MetaPathFinder):
    """Comes last, so that it is asked only for what nothing else could find."""

    def find_spec(self, fullname, path, target=None):
        if fullname.partition(".")[0] not in MISSING:
            return None
        return importlib.machinery.ModuleSpec(fullname, _MissingLoader(), is_package=True)


class NullEngine:
    """Stands where SGLang has Mooncake's transfer engine; nothing moves."""

    def get_session_id(self):
        return f"127.0.0.1:{os.getpid()}"

    def batch_register(self, pointers, lengths):
        return 0

    def batch_deregister(self, pointers):
        return 0

    def send_probe(self, session):
        return 0

    def transfer_sync(self, session, source, target, length):
        return 0

    def batch_transfer_sync(self, session, sources, targets, lengths):
        return 0


def _replace(name, package_folder=None, **names):
    module = _InertModule(name)
    module.__dict__.update(names)
    if package_folder:
        module.__path__ = [package_folder + "/" + "/".join(name.split(".")[1:])]
    sys.modules[name] = module


def _skip_front_end():
    """sglang/__init__.py brings the front end; the package's search path is all that is wanted."""
    spec = importlib.util.find_spec("sglang")
    package = types.ModuleType("sglang")
    package.__path__ = list(spec.submodule_search_locations)
    package.__spec__, package.__file__ = spec, spec.origin
    sys.modules["sglang"] = package
    return package.__path__[0]


def _settings(bootstrap_port):
    return types.SimpleNamespace(
        attn_tp_size=1, attn_tp_rank=0, attn_cp_size=1, attn_cp_rank=0, attn_dp_size=1,
        attn_dp_rank=0, attn_dcp_size=1, attn_dcp_rank=0, dp_size=1, num_dp_ranks=1, pp_size=1,
        pp_group=None, world_group=None, nnodes=1, dist_init_addr=None,
        load_balance_method="follow_bootstrap_room", enable_cp_tp_group_sharing=False,
        enable_dsa_cache_layer_split=False, enable_kv_cache_sharding=False, host="127.0.0.1",
        port=30000, disaggregation_bootstrap_port=bootstrap_port,
        disaggregation_decode_allocation_policy="early", enable_trace=False, device="cpu",
        enable_unified_memory=False, speculative_algorithm=None, chunked_prefill_size=8192,
        max_prefill_tokens=16384)


def fill_kv_args(arguments, kv, aux, *, item_bytes, aux_bytes, layers, page_tokens, **overrides):
    """Fills SGLang's KVArgs for one plain rank, with K and V of each layer in kv and the metadata
    buffers in aux: arrays whose items have item_bytes, and aux_bytes each. Returns arguments."""
    values = {
        "engine_rank": 0, "kv_data_ptrs": [each.ctypes.data for each in kv],
        "kv_data_lens": [each.nbytes for each in kv], "kv_item_lens": [item_bytes] * len(kv),
        "kv_layer_ids": [], "kv_cache_dtype_str": "auto",
        "aux_data_ptrs": [each.ctypes.data for each in aux],
        "aux_data_lens": [each.nbytes for each in aux], "aux_item_lens": list(aux_bytes),
        "state_types": [], "state_data_ptrs": [], "state_data_lens": [], "state_item_lens": [],
        "state_layer_ids": [], "state_dim_per_tensor": [], "state_slice_outer_counts": [],
        "state_conv_shard_groups": [], "is_hybrid_mla_backend": False,
        "swa_kv_cache_layout": None, "ib_device": None, "gpu_id": 0, "kv_head_num": 1,
        "total_kv_head_num": 1, "page_size": page_tokens, "system_dp_rank": 0,
        "rust_http_port": None, "pp_rank": 0, "prefill_start_layer": 0,
        "prefill_end_layer": layers, "mla_compression_ratios": None, "kv_buf_groups": 1,
        "hidden_kv_layers": 0, "draft_kv_layers": 0, "kv_data_mem_kinds": ["DRAM"] * len(kv),
    } | overrides
    for name, value in values.items():
        setattr(arguments, name, value)
    return arguments


def load(bootstrap_port):
    """Returns SGLang's module with the Mooncake backend, whose engine is a NullEngine."""
    os.environ.setdefault("SGLANG_HOST_IP", "127.0.0.1")
    sys.meta_path.append(_MissingFinder())
    folder = _skip_front_end()
    settings = _settings(bootstrap_port)

    def current(*_, **__):
        return settings

    accessors = ("parallel", "disagg", "serving", "schedule", "observability", "device", "memory",
                 "spec", "exec", "resources", "server_args", "platform")
    _replace("sglang.srt.runtime_context", linear_attn_tp_size=lambda: settings.attn_tp_size,
             max_prefill_buffer_tokens=lambda: settings.chunked_prefill_size,
             **{f"get_{name}": current for name in accessors})
    _replace("sglang.srt.server_args",
             ServerArgs=type("ServerArgs", (), {"enable_pd_role_switch": False}))
    helpers = {
        "is_npu": lambda: False, "is_cuda": lambda: False, "is_hip": lambda: False,
        "ceil_align": lambda value, unit: -(-value // unit) * unit,
        "get_int_env_var": lambda name, default=0: int(os.environ.get(name, default)),
        "run_with_deadline": lambda function, timeout_s=None, what="": function(),
    }
    _replace("sglang.srt.utils", folder, **helpers)
    _replace("sglang.srt.utils.common", **helpers)
    engine_module = "sglang.srt.distributed.device_communicators.mooncake_transfer_engine"
    _replace("sglang.srt.distributed", folder)
    _replace("sglang.srt.distributed.parallel_state",
             get_mooncake_transfer_engine=lambda: importlib.import_module(
                 engine_module).get_mooncake_transfer_engine())
    _replace("sglang.srt.configs.model_config")
    _replace("sglang.srt.mem_cache.page_interleave")
    _replace("sglang.srt.observability.mooncake_trace",
             mooncake_trace_func=lambda *_, **__: lambda function: function,
             mooncake_trace_slice=lambda *_, **__: contextlib.nullcontext())
    module = importlib.import_module("sglang.srt.disaggregation.mooncake.conn")
    importlib.import_module(engine_module)._mooncake_transfer_engine = NullEngine()
    return module
