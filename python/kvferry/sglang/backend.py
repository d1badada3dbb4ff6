"""The backend's name in SGLang, and its classes by SGLang's kind."""

import os
from typing import Any

NAME = "kvferry"
ALIAS_VARIABLE = "KVFERRY_SGLANG_ALIAS"
# Names that may be taken over: 'mooncake' also makes SGLang start that library's engine.
ALIASES = ("nixl", "mori")


def alias() -> str | None:
    """The built-in name that means kvferry in this process, None without one."""
    return os.environ.get(ALIAS_VARIABLE) or None


def is_name_of_kvferry(name: str) -> bool:
    return name in (NAME, alias())


def classes() -> dict[str, type]:
    """By the value of SGLang's KVClassType. Imports SGLang's disaggregation modules."""
    from kvferry.sglang.bootstrap import KvferryKVBootstrapServer
    from kvferry.sglang.manager import KvferryKVManager
    from kvferry.sglang.receiver import KvferryKVReceiver
    from kvferry.sglang.sender import KvferryKVSender
    return {"manager": KvferryKVManager, "sender": KvferryKVSender,
            "receiver": KvferryKVReceiver, "bootstrap_server": KvferryKVBootstrapServer}


def around_get_kv_class(original: Any, transfer_backend: Any, class_type: Any) -> Any:
    """AROUND hook of SGLang's get_kv_class: kvferry's classes for its names, else SGLang's own. What
    all backends share (the KVArgs container) stays SGLang's."""
    if is_name_of_kvferry(getattr(transfer_backend, "value", "")):
        found = classes().get(class_type.value)
        if found is not None:
            return found
    return original(transfer_backend, class_type)
