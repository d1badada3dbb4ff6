"""One process of a test's fleet: a prefill or a decode rank of SGLang with the backend of the flags.

    rank.py JSON

JSON has the role, the rank, the fleet's plan and the inherited descriptors of the connections to the
test (commands, answers) and to the other ranks of its engine.
"""

import ctypes
import dataclasses
import json
import logging
import os
import signal
import sys
import time
import traceback
from multiprocessing.connection import Connection

IDLE_SECONDS = 0.0002
PR_SET_PDEATHSIG = 1


def serve(control, given):
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    logging.basicConfig(level=logging.INFO, stream=sys.stderr,
                        format=f"{given['role']} {given['tp_rank']} "
                               "%(levelname)s %(name)s: %(message)s")
    logging.Logger.warning_once = lambda self, text, *values: self.warning(text, *values)
    logging.Logger.info_once = lambda self, text, *values: self.info(text, *values)
    try:
        rank = _start(given)
        control.send("started")
        while True:
            verb, *arguments = control.recv()
            if verb == "quit":
                rank.manager.teardown()
                control.send("ended")
                os._exit(0)
            control.send(globals()[f"_{verb}"](rank, *arguments))
    except EOFError:
        os._exit(0)
    except BaseException as error:  # a SystemExit of the plug-in is a result, too
        control.send(RuntimeError(f"{given['role']} {given['tp_rank']}: {type(error).__name__}: "
                                  f"{error}\n{traceback.format_exc()}"))
        os._exit(1)


def _start(given):
    import host_sglang
    from plan import Plan
    settings = host_sglang.load(bootstrap_port=given["port"], backend=given["backend"],
                                tp_rank=given["tp_rank"], tp_size=given["tp_size"],
                                links=[Connection(each) for each in given["links"]])
    plan = Plan(**given["plan"])
    from sglang.srt.plugins import load_plugins
    load_plugins()
    if given["role"] == "prefill":
        from prefill_rank import Prefill
        return Prefill(settings, plan, has_bootstrap_server=given["tp_rank"] == 0)
    from decode_rank import Decode
    return Decode(settings, plan)


def _believe_without_proof(rank):
    """The control: SGLang is told at once that pages may be freed, as its timer would."""
    rank.manager.is_abort_release_safe = lambda *_: True
    return "done"


def _run(rank, seconds, first_room=None):
    """Takes all rooms of the plan through. Returns figures, causes of failures, and faults."""
    if first_room is not None:
        rank.plan = dataclasses.replace(rank.plan, first_room=first_room)
    plan = rank.plan
    following, live, faults, causes = 0, {}, [], []
    counts = {"succeeded": 0, "failed": 0}
    end = time.monotonic() + seconds
    while following < plan.rooms or live:
        while following < plan.rooms and len(live) < plan.concurrency:
            req = rank.open(following)
            live[id(req)] = req
            following += 1
        ended = rank.turn()
        faults += rank.check(ended)
        for req in ended:
            del live[id(req)]
            aborted = type(req.finished_reason).__name__ == "FinishAbort"
            counts["failed" if aborted else "succeeded"] += 1
            if aborted:
                causes.append(req.finished_reason.message)
        if not ended:
            if time.monotonic() > end:
                raise RuntimeError(f"{len(live)} rooms do not end: "
                                   f"{[each.rid for each in live.values()][:5]}; "
                                   f"{rank.manager.core.dump_status()[:2000]}")
            time.sleep(IDLE_SECONDS)
    while not rank.quiet():
        if time.monotonic() > end:
            raise RuntimeError(f"kvferry gives not all back: {rank.manager.core.dump_status()[:2000]}")
        time.sleep(IDLE_SECONDS)
    return counts | {"causes": causes, "faults": faults[:20],
                     "fault_count": len(faults)} | _pages(rank)


def _pages(rank):
    if not hasattr(rank, "freed_early"):
        return {}
    rank._reuse_poisoned(len(rank.poisoned))
    return {"freed_early": len(rank.freed_early), "late_bytes": rank.late_bytes,
            "timer": rank.transfers.deferred_kv_release_timeout}


if __name__ == "__main__":
    arguments = json.loads(sys.argv[1])
    serve(Connection(arguments["control"]), arguments)
