"""The entry point that SGLang calls in each of its processes, and the check that it took effect.

What makes a backend known to SGLang 0.5.23, all by its own means:

1. its name in the choices of --disaggregation-transfer-backend (add_disagg_transfer_backend_choices);
2. a member of the enum TransferBackend, which schedulers make of that name;
3. an AROUND hook on get_kv_class, by SGLang's HookRegistry;
4. in processes that have the decode scheduler, an AFTER hook that turns its release timer off.

SGLang applies hooks after all plug-ins ran, and only logs what goes wrong. So the plug-in looks once
more when they have been applied, and either says in one line that each took effect, or takes the name
away again, so that SGLang stops at it, and says what to do. In alias mode, where the name would still
mean another backend, it ends the process.
"""

import importlib.metadata
import inspect
import logging
import sys
from typing import Any

import kvferry
from kvferry.sglang import backend, release_timer

logger = logging.getLogger(__name__)

TRIED_VERSIONS = ("0.5.23",)
GET_KV_CLASS = "sglang.srt.disaggregation.utils.get_kv_class"
_COMMON = "sglang.srt.disaggregation.common.conn"
_MEMBER = backend.NAME.upper()


class PluginError(Exception):
    """SGLang is not as the plug-in expects it; the text says what to do."""


def register() -> None:
    """Entry point of the group sglang.srt.plugins. Raises PluginError (SGLang logs it)."""
    check_interface()
    alias = backend.alias()
    if alias is not None and alias not in backend.ALIASES:
        sys.exit(f"{backend.ALIAS_VARIABLE}={alias}: kvferry can stand under one of the names "
                 f"{', '.join(backend.ALIASES)}")
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType
    add_member()
    HookRegistry.register(GET_KV_CLASS, backend.around_get_kv_class, HookType.AROUND)
    if _has_decode_scheduler():
        HookRegistry.register(release_timer.TARGET, release_timer.overrule, HookType.AFTER)
    add_choice()
    verify_after(HookRegistry)


def check_interface() -> None:
    """Raises PluginError when what the plug-in hooks into is not there."""
    version = importlib.metadata.version("sglang")
    advice = (f"kvferry {kvferry.__version__} was tried with SGLang {', '.join(TRIED_VERSIONS)}, this "
              f"is {version}: install one of those, or a kvferry that knows this one")
    try:
        from sglang.srt.disaggregation import utils
        from sglang.srt.disaggregation.base import conn
        from sglang.srt.plugins import hook_registry
        wanted = {
            "get_kv_class(transfer_backend, class_type)": list(
                inspect.signature(utils.get_kv_class).parameters) == [
                    "transfer_backend", "class_type"] or hasattr(utils.get_kv_class, "__wrapped__"),
            "KVClassType": {"manager", "sender", "receiver", "bootstrap_server"} <= {
                each.value for each in utils.KVClassType},
            "TransferBackend": hasattr(utils.TransferBackend, "_value2member_map_"),
            "HookRegistry.apply_hooks": hasattr(hook_registry.HookRegistry, "apply_hooks"),
            "KVPoll": (conn.KVPoll.Failed, conn.KVPoll.Success) == (0, 4),
        }
    except (ImportError, AttributeError) as error:
        raise PluginError(f"{error}; {advice}") from error
    missing = [name for name, is_there in wanted.items() if not is_there]
    if missing:
        raise PluginError(f"SGLang's {', '.join(missing)} is not what it was; {advice}")
    if version not in TRIED_VERSIONS:
        logger.warning("%s", advice)


def add_member() -> None:
    """Adds TransferBackend.KVFERRY. An enum can't be subclassed, and its users hold the class, so
    the member is put where the enum keeps its own."""
    from sglang.srt.disaggregation.utils import TransferBackend
    if backend.NAME in TransferBackend._value2member_map_:
        return
    member = object.__new__(TransferBackend)
    member._name_ = _MEMBER
    member._value_ = backend.NAME
    member.__objclass__ = TransferBackend
    member._sort_order_ = len(TransferBackend._member_names_)
    type.__setattr__(TransferBackend, _MEMBER, member)
    TransferBackend._member_names_.append(_MEMBER)
    TransferBackend._member_map_[_MEMBER] = member
    TransferBackend._value2member_map_[backend.NAME] = member


def add_choice() -> None:
    from sglang.srt.arg_groups import choices
    if backend.NAME not in choices.DISAGG_TRANSFER_BACKEND_CHOICES:
        choices.add_disagg_transfer_backend_choices([backend.NAME])


def withdraw() -> None:
    """Takes the name away, so that SGLang refuses it at its arguments and in its schedulers."""
    from sglang.srt.arg_groups import choices
    from sglang.srt.disaggregation.utils import TransferBackend
    if backend.NAME in choices.DISAGG_TRANSFER_BACKEND_CHOICES:
        choices.DISAGG_TRANSFER_BACKEND_CHOICES.remove(backend.NAME)
    TransferBackend._value2member_map_.pop(backend.NAME, None)
    TransferBackend._member_map_.pop(_MEMBER, None)
    if _MEMBER in TransferBackend._member_names_:
        TransferBackend._member_names_.remove(_MEMBER)


def _has_decode_scheduler() -> bool:
    """Only scheduler processes do, and they have imported it before they load plug-ins; the others
    are spared the import."""
    return release_timer.MODULE in sys.modules


def verify_after(registry: Any) -> None:
    """Runs conclude() once, when SGLang has applied all hooks."""
    original = registry.__dict__["apply_hooks"]

    def apply_hooks(cls: Any) -> None:
        registry.apply_hooks = original
        original.__get__(None, cls)()
        conclude()

    registry.apply_hooks = classmethod(apply_hooks)


def problems() -> list[str]:
    """What did not take effect; empty when all did."""
    from sglang.srt.arg_groups import choices
    from sglang.srt.disaggregation import utils
    found = []
    if backend.NAME not in choices.DISAGG_TRANSFER_BACKEND_CHOICES:
        found.append("the choice of --disaggregation-transfer-backend")
    names = [each for each in (backend.NAME, backend.alias()) if each is not None]
    for name in names:
        try:
            member = utils.TransferBackend(name)
        except ValueError:
            found.append(f"the member '{name}' of TransferBackend")
            continue
        stale = [module for module, function in _holders() if not _answers(function, member)]
        if stale:
            found.append(f"the hook on get_kv_class for '{name}' (in {', '.join(sorted(stale))})")
    if _has_decode_scheduler() and not release_timer.is_overruled():
        found.append("the hook that turns the decode scheduler's release timer off")
    return found


def _answers(function: Any, member: Any) -> bool:
    """Whether this get_kv_class gives kvferry's classes. It is called where the classes' own imports
    are there or needed; the other processes are spared them, and the hook is looked for."""
    from sglang.srt.disaggregation.utils import KVClassType
    if backend.alias() is None and _COMMON not in sys.modules:
        return release_timer.has_hook(function, backend.around_get_kv_class)
    return all(function(member, KVClassType(kind)) is wanted
               for kind, wanted in backend.classes().items())


def _holders() -> list[tuple[str, Any]]:
    """Modules of SGLang that have get_kv_class by name, with what they have."""
    held = []
    for name, module in list(sys.modules.items()):
        if name.startswith("sglang.") and "get_kv_class" in getattr(module, "__dict__", {}):
            held.append((name, module.__dict__["get_kv_class"]))
    return held


def conclude() -> None:
    """Says that all took effect, or refuses."""
    try:
        found = problems()
    except Exception as error:  # whatever it is, the backend can't be used
        logger.debug("verification failed", exc_info=True)
        found = [f"the backend's own classes ({type(error).__name__}: {error})"]
    alias = backend.alias()
    if not found:
        logger.info("kvferry %s in SGLang %s: backend '%s'%s, its classes at %d places%s",
                    kvferry.__version__, importlib.metadata.version("sglang"), backend.NAME,
                    f" and alias '{alias}'" if alias else "", len(_holders()),
                    ", release timer off" if _has_decode_scheduler() else "")
        return
    withdraw()
    text = (f"kvferry can't be a backend of this SGLang: no effect had {'; '.join(found)}. Is another "
            "plug-in loaded that replaces it? SGLANG_PLUGINS=kvferry loads no other; tried are SGLang "
            f"{', '.join(TRIED_VERSIONS)}")
    if alias:
        sys.exit(f"{text}. {backend.ALIAS_VARIABLE} is set, so nothing is started in its place")
    logger.error("%s", text)
