"""SGLang's disaggregation settings, and kvferry's options as SGLang's processes get them.

An option of kvferry is, in falling order: the environment's KVFERRY_<OPTION>, what a setting of
SGLang maps to, kvferry's default.
"""

import enum
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import kvferry

RELEASE_TIMER = "SGLANG_DISAGGREGATION_DEFERRED_DECODE_KV_RELEASE_TIMEOUT"
DEFERRED_RELEASE = "SGLANG_DISAGGREGATION_DEFERRED_DECODE_KV_RELEASE"


class Use(enum.Enum):
    HONOURED = "honoured"  # SGLang's own code or the plug-in acts on it as SGLang's backends do
    MAPPED = "mapped"  # becomes an option of kvferry
    OVERRULED = "overruled"  # the plug-in sets it
    REQUIRED = "required"  # another value is refused at start
    IGNORED = "ignored"  # concerns what this backend does not have


@dataclass(frozen=True)
class Setting:
    name: str
    use: Use
    what: str  # what becomes of it, as the manual has it
    options: tuple[str, ...] = ()  # MAPPED: options that get its value in milliseconds
    roles: tuple[kvferry.Role, ...] = (kvferry.Role.Prefill, kvferry.Role.Decode)


SETTINGS = (
    Setting("SGLANG_DISAGGREGATION_BOOTSTRAP_TIMEOUT", Use.MAPPED,
            "seconds until decode's pages are known to prefill", ("bootstrap_timeout_ms",),
            (kvferry.Role.Prefill,)),
    Setting("SGLANG_DISAGGREGATION_WAITING_TIMEOUT", Use.MAPPED,
            "seconds of waiting for metadata, for the first chunk, and for the end",
            ("input_timeout_ms", "transfer_timeout_ms")),
    Setting(DEFERRED_RELEASE, Use.REQUIRED,
            "must be true: without it SGLang frees the pages of a failed request at once"),
    Setting(RELEASE_TIMER, Use.OVERRULED,
            "never: pages come back when kvferry has fenced them, not by the clock"),
    Setting("SGLANG_DISAGGREGATION_FORCE_QUERY_PREFILL_DP_RANK", Use.HONOURED,
            "prefill tells its rank to the bootstrap server, in the background"),
    Setting("SGLANG_DISAGGREGATION_THREAD_POOL_SIZE", Use.HONOURED,
            "threads for look-ups and recomputations; 16 when unset"),
    Setting("SGLANG_DISAGGREGATION_BOOTSTRAP_ENTRY_CLEANUP_INTERVAL", Use.HONOURED,
            "by the bootstrap server's table of data-parallel ranks"),
    Setting("SGLANG_DISAGG_PREFILL_EARLY_SEND_CACHED_PREFIX", Use.HONOURED,
            "cached prefixes are sent before the forward pass"),
    Setting("SGLANG_ENABLE_DISAGG_SAMPLING_MASK", Use.HONOURED,
            "its buffers are a part of the metadata row"),
    Setting("SGLANG_ENABLE_DISAGG_PREFILL_CONTINUOUS_INPUT_POLLING", Use.HONOURED,
            "by SGLang's scheduler"),
    Setting("SGLANG_DISAGGREGATION_SAMPLING_MASK_MAX_TOKENS", Use.HONOURED,
            "removed by SGLang, which refuses it"),
    Setting("SGLANG_TEST_DISAGG_FAILURE_PROB", Use.HONOURED, "by SGLang's scheduler"),
    Setting("SGLANG_TEST_DISAGG_KV_CHECKSUM_MISMATCH_PROB", Use.HONOURED, "by SGLang's scheduler"),
    Setting("SGLANG_DISAGGREGATION_HEARTBEAT_INTERVAL", Use.IGNORED,
            "each pair has a session with heartbeats: heartbeat_interval_ms"),
    Setting("SGLANG_DISAGGREGATION_HEARTBEAT_MAX_FAILURE", Use.IGNORED, "heartbeat_timeout_ms"),
    Setting("SGLANG_DISAGGREGATION_ZMQ_SEND_TIMEOUT", Use.IGNORED,
            "no call of the scheduler's thread sends"),
    Setting("SGLANG_DISAGGREGATION_ZMQ_MAX_SOCKETS", Use.IGNORED, "max_peers"),
    Setting("SGLANG_DISAGGREGATION_QUEUE_SIZE", Use.IGNORED, "there are no transfer queues"),
    Setting("SGLANG_DISAGGREGATION_ENGINE_INIT_TIMEOUT", Use.IGNORED,
            "no transfer engine is initialised"),
    Setting("SGLANG_DISAGGREGATION_NIXL_BACKEND", Use.IGNORED, "also under the name nixl"),
    Setting("SGLANG_DISAGGREGATION_NIXL_BACKEND_PARAMS", Use.IGNORED, "also under the name nixl"),
    Setting("SGLANG_DISAGGREGATION_ALL_CP_RANKS_TRANSFER", Use.IGNORED,
            "context parallelism is refused"),
    Setting("SGLANG_DISAGG_STAGING_BUFFER", Use.REQUIRED,
            "must be false: pieces of a page are written in place, without a staging buffer"),
    Setting("SGLANG_DISAGG_STAGING_POOL_SIZE_MB", Use.IGNORED, "no staging buffer"),
    Setting("SGLANG_TEST_PD_DISAGG_BACKEND", Use.IGNORED, "of SGLang's own tests"),
    Setting("SGLANG_TEST_PD_DISAGG_DEVICES", Use.IGNORED, "of SGLang's own tests"),
)


def value(name: str) -> Any:
    """Returns a setting's value as SGLang reads it, with SGLang's default."""
    from sglang.srt.environ import envs
    return getattr(envs, name).get()


def check_required() -> list[str]:
    """Returns what is wrong with settings that must have one value, with what to do."""
    problems = []
    if not value(DEFERRED_RELEASE):
        problems.append(f"{DEFERRED_RELEASE} is off, so that SGLang would free pages that may still "
                        "be written: unset it")
    if value("SGLANG_DISAGG_STAGING_BUFFER"):
        problems.append("SGLANG_DISAGG_STAGING_BUFFER is on, and this backend has no staging "
                        "buffers: unset it")
    return problems


def release_timer_is_off() -> bool:
    """Whether SGLang's timer that frees pages without proof is off by the environment."""
    return math.isinf(value(RELEASE_TIMER))


def options_for(role: kvferry.Role, given: Mapping[str, Any],
                environment: Mapping[str, str] = os.environ) -> kvferry.Options:
    """Returns the options of a manager.

    given: options that the plug-in derives from SGLang's arguments (addresses). The environment
    comes before them. Raises kvferry.InvalidArgument that names the option and its range.
    """
    options = kvferry.Options()
    for setting in SETTINGS:
        if setting.use is Use.MAPPED and role in setting.roles:
            for name in setting.options:
                options.set(name, int(1000 * value(setting.name)))
    for name, each in given.items():
        options.set(name, each)
    for row in kvferry.option_rows():
        text = environment.get(f"KVFERRY_{row.name.upper()}")
        if text is not None:
            options.set(row.name, text)
    return options
