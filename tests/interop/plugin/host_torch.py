"""As much of PyTorch as SGLang's disaggregation schedulers call on a host without it: arrays and the
collectives over a group of ranks. Everything else of it stays inert (bench/peers/sglang_cpu.py)."""

import enum
import operator
import sys
import types

import numpy


class Tensor(numpy.ndarray):
    """A NumPy array with the names of PyTorch's that are used here."""

    def data_ptr(self):
        return self.ctypes.data

    def clone(self):
        return self.copy()

    def cpu(self):
        return self

    def numpy(self):
        return numpy.asarray(self)


def tensor(values, dtype=None, device=None):
    return numpy.array(values, dtype=dtype).view(Tensor)


def zeros(shape, dtype=None, device=None):
    return numpy.zeros(shape, dtype=dtype).view(Tensor)


def full(shape, fill, dtype=None, device=None):
    return numpy.full(shape, fill, dtype=dtype).view(Tensor)


class ReduceOp(enum.Enum):
    MIN = min
    MAX = max
    SUM = operator.add


class Group:
    """The ranks of one engine. links: connections to the others, in every process in an order that
    has the lower rank of a pair send first."""

    def __init__(self, links=()):
        self.links = list(links)


def get_world_size(group=None):
    return 1 + len(group.links) if isinstance(group, Group) else 1


def all_reduce(values, op=None, group=None):
    """Combines equally long lists. Raises RuntimeError when the ranks' lists differ in length, which
    PyTorch would not notice."""
    own = values.tolist()
    for link in group.links:
        link.send(own)
    for link in group.links:
        theirs = link.recv()
        if len(theirs) != len(own):
            raise RuntimeError(f"ranks reduce lists of {len(own)} and {len(theirs)}")
        reduce = min if op is ReduceOp.MIN else max if op is ReduceOp.MAX else operator.add
        values[:] = [reduce(mine, other) for mine, other in zip(values.tolist(), theirs)]


def install(inert_module):
    """Puts it where `import torch` finds it. inert_module: makes a module whose other names do
    nothing."""
    torch = inert_module("torch")
    for name in ("int32", "int64", "uint64", "float32", "uint8"):
        setattr(torch, name, getattr(numpy, name))
    torch.dtype = type
    torch.Tensor, torch.tensor, torch.zeros, torch.full = Tensor, tensor, zeros, full
    distributed = inert_module("torch.distributed")
    distributed.get_world_size, distributed.all_reduce = get_world_size, all_reduce
    distributed.ReduceOp, distributed.ProcessGroup = ReduceOp, Group
    distributed.is_available = distributed.is_initialized = lambda: False
    torch.distributed = distributed
    sys.modules["torch"], sys.modules["torch.distributed"] = torch, distributed
    assert isinstance(torch, types.ModuleType)
