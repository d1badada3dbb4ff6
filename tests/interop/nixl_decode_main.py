#!/usr/bin/env python3
"""A kvferry decode rank in a process with a real NIXL agent, into which prefill's agents write.

    nixl_decode_main.py LIBRARY REGISTRY TP_SIZE TP_RANK PAGES AUX_SLOTS PATIENCE_MS

LIBRARY is kvferry_sglang_decode as a library; the rest, and the talk, are that program's.
"""

import ctypes
import importlib
import os
import sys
import traceback
import uuid

import sglang_rank

ADDRESSES = ctypes.POINTER(ctypes.c_uint64)
MAKE_AGENT = ctypes.CFUNCTYPE(ctypes.c_size_t, ADDRESSES, ADDRESSES, ctypes.c_size_t,
                              ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p, ctypes.c_size_t)
agents = []  # they live as long as the process


def make_agent(addresses, sizes, count, name, name_bytes, metadata, metadata_bytes):
    try:
        api = importlib.import_module("nixl_cu12._api")
        agent = api.nixl_agent(str(uuid.uuid4()))
        agent.register_memory([(addresses[i], sizes[i], 0, "") for i in range(count)], "DRAM")
        blob = agent.get_agent_metadata()
        assert len(blob) <= metadata_bytes and len(agent.name) < name_bytes
        ctypes.memmove(name, agent.name.encode() + b"\0", len(agent.name) + 1)
        ctypes.memmove(metadata, blob, len(blob))
        agents.append(agent)
        return len(blob)
    except Exception:  # pylint: disable=broad-except
        traceback.print_exc()
        return 0


def main():
    sglang_rank.use_nixl()
    os.environ["NIXL_LOG_LEVEL"] = "ERROR"  # the standard output is for answers
    library, *arguments = sys.argv[1:]
    words = [b"kvferry_sglang_decode", *(each.encode() for each in arguments)]
    callback = MAKE_AGENT(make_agent)
    sys.stdout.flush()
    sglang_rank.leave(ctypes.CDLL(library).kvferry_sglang_decode(
        len(words), (ctypes.c_char_p * len(words))(*words), callback))


if __name__ == "__main__":
    main()
