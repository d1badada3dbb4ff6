"""SGLang's timer that frees the pages of a failed request without proof, and how it is overruled.

SGLang's decode scheduler holds the pages of a failed request until the backend says that no write can
land any more (KvferryKVManager.is_abort_release_safe), or until 30 s have passed
(SGLANG_DISAGGREGATION_DEFERRED_DECODE_KV_RELEASE_TIMEOUT). A hook on the queue that holds them sets
its timeout to infinity where the backend is kvferry; other backends keep theirs.
"""

import math
import sys
from collections.abc import Callable, Iterator
from typing import Any

MODULE = "sglang.srt.disaggregation.decode"
TARGET = f"{MODULE}.DecodeTransferQueue.__init__"


def overrule(_result: None, queue: Any, *_arguments: Any, **_named: Any) -> None:
    """AFTER hook of the queue's constructor."""
    from sglang.srt.runtime_context import get_disagg

    from kvferry.sglang.backend import is_name_of_kvferry
    if is_name_of_kvferry(get_disagg().disaggregation_transfer_backend):
        queue.deferred_kv_release_timeout = math.inf


def _layers(function: Any) -> Iterator[Callable[..., Any]]:
    while function is not None:
        yield function
        function = getattr(function, "__wrapped__", None)


def has_hook(function: Any, hook: Callable[..., Any]) -> bool:
    """Whether SGLang has put this hook around the function."""
    return any(cell.cell_contents is hook for layer in _layers(function)
               for cell in getattr(layer, "__closure__", None) or ())


def is_overruled() -> bool:
    """Whether the hook is in force on the class that is loaded in this process."""
    module = sys.modules.get(MODULE)
    if module is None:
        return False
    return has_hook(module.DecodeTransferQueue.__init__, overrule)
