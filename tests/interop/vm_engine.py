"""A transfer engine for real SGLang that moves bytes on one host: process_vm_writev into the process
whose number stands in the session's name. Writes can be held up, so that a test sees what happens
while they are under way."""

import ctypes
import importlib
import threading

import sglang_cpu

PIECES = 512  # of one call
ENGINE_MODULE = "sglang.srt.distributed.device_communicators.mooncake_transfer_engine"


class _Span(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]


class VmEngine(sglang_cpu.NullEngine):
    def __init__(self):
        self.library = ctypes.CDLL(None, use_errno=True)
        self.open = threading.Event()
        self.open.set()
        self.fails = False
        self.held = 0  # calls that wait

    def transfer_sync(self, session, source, target, length):
        return self.batch_transfer_sync(session, [source], [target], [length])

    def batch_transfer_sync(self, session, sources, targets, lengths):
        if not self.open.is_set():
            self.held += 1
            self.open.wait()
            self.held -= 1
        if self.fails:
            return -1
        process = int(session.rsplit(":", 1)[1])
        pieces = [(int(source), int(target), int(length))
                  for source, target, length in zip(sources, targets, lengths)]
        for first in range(0, len(pieces), PIECES):
            part = pieces[first:first + PIECES]
            local = (_Span * len(part))(*[_Span(source, length) for source, _, length in part])
            remote = (_Span * len(part))(*[_Span(target, length) for _, target, length in part])
            written = self.library.process_vm_writev(process, local, len(part), remote, len(part), 0)
            if written != sum(length for _, _, length in part):
                return -1
        return 0


def install():
    """For managers made from here on; returns the engine."""
    engine = VmEngine()
    importlib.import_module(ENGINE_MODULE)._mooncake_transfer_engine = engine
    return engine
