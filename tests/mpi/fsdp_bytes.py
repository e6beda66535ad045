"""What fully_shard sends and allocates, counted where PyTorch does so."""

from __future__ import annotations

import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule
from torch.distributed.fsdp._fully_shard import _fsdp_collectives as collectives
from torch.distributed.fsdp._fully_shard import _fsdp_param as parameter
from torch.distributed.fsdp._fully_shard import _fsdp_param_group as param_group

GATHER, SCATTER, REDUCE = "all_gather_single", "reduce_scatter_single", "all_reduce"


class Counted:
    """The counts of one rank."""

    def __init__(self, modules: Sequence[FSDPModule], held: int) -> None:
        self._modules, self._held = modules, held
        self.tensors: Counter[tuple[str, int]] = Counter()
        """Bytes of whole tensors, by collective and how many ranks take part."""
        self.calls: Counter[str] = Counter()
        self.whole = self.most_whole = 0
        """Bytes of gathered parameters, with the buffers that they are gathered into."""
        self.most_gradients, self._gradients = 0, 0
        """Bytes of gradients of whole parameters, with the copy that is summed over ranks."""

    def allocated(self, size: int) -> None:
        self.whole += size
        self.most_whole = max(self.most_whole, self.whole)

    def freed(self, size: int) -> None:
        self.whole -= size

    def begin_backward(self) -> None:
        """From here on, the most that is whole is that of a backward pass."""
        self.most_whole = self.whole

    def called(self, name: str, group: dist.ProcessGroup, size: int) -> None:
        self.tensors[name, group.size()] += size
        self.calls[name] += 1

    def reducing(self, parameters: Sequence[Any], gradients: Sequence[torch.Tensor]) -> None:
        """Those that are summed next; others wait."""
        groups = [g for m in self._modules for g in m._get_fsdp_state()._fsdp_param_groups]
        whole = [getattr(p, "_unsharded_param", None) for g in groups for p in g.fsdp_params]
        waiting = [w.grad for w in whole if w is not None and w.grad is not None]
        is_last = parameters[0] in groups[0].fsdp_params
        held = 0 if is_last else self._held
        self._gradients = sum(g.nbytes for g in (*gradients, *waiting)) + held

    def copied(self, size: int) -> None:
        """What is summed next is copied, and what it is copied from is gone then."""
        if self._gradients:
            self.most_gradients = max(self.most_gradients, self._gradients + size)
        self._gradients = 0


@contextmanager
def counting(modules: Sequence[FSDPModule], held: int = 0) -> Iterator[Counted]:
    """Inside, all that these modules do on this rank is counted.

    Args:
        modules: the root first.
        held: bytes of a gradient that autograd holds for a parameter of the root's that is used
            twice, until it has the other.
    """
    counted, living = Counted(modules, held), {}
    alloc, free = parameter.alloc_storage, parameter.free_storage
    reduce = param_group.foreach_reduce

    def alloc_storage(tensor: torch.Tensor) -> None:
        alloc(tensor)
        living[id(tensor)] = tensor.nbytes
        counted.allocated(tensor.nbytes)

    def free_storage(tensor: torch.Tensor) -> None:
        free(tensor)
        counted.freed(living.pop(id(tensor), 0))

    def allocate(self: Any, size: Any, *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        tensor = torch.empty(*size, dtype=dtype, device=device)
        counted.allocated(tensor.nbytes)
        # Others are views of it that live shorter.
        weakref.finalize(tensor, counted.freed, tensor.nbytes)
        return tensor

    def allocate_copy(self: Any, size: Any, **more: Any) -> torch.Tensor:
        tensor = torch.empty(*size, **more)
        counted.copied(tensor.nbytes)
        return tensor

    def foreach_reduce(parameters: Any, gradients: Any, *args: Any, **more: Any) -> Any:
        counted.reducing(parameters, gradients)
        return reduce(parameters, gradients, *args, **more)

    def told(name: str) -> Callable[..., Any]:
        call = getattr(dist, name)

        def wrapped(*args: Any, **more: Any) -> Any:
            tensors = [t for t in (*args, *more.values()) if isinstance(t, torch.Tensor)]
            counted.called(name, more["group"], max(t.nbytes for t in tensors))
            before = [_num_references(t) for t in tensors]
            result = call(*args, **more)
            # A thread of gloo's lets go of them a moment after it has told that it is done.
            while any(_num_references(t) > n for t, n in zip(tensors, before, strict=True)):
                time.sleep(1e-4)
            return result

        return wrapped

    with ExitStack() as stack:
        for where, name, instead in (
            *((module, "alloc_storage", alloc_storage) for module in (parameter, param_group)),
            (parameter, "free_storage", free_storage),
            (param_group, "foreach_reduce", foreach_reduce),
            (collectives.DefaultAllGather, "allocate", allocate),
            (collectives.DefaultReduceScatter, "allocate", allocate_copy),
            *((dist, name, told(name)) for name in (GATHER, SCATTER)),
        ):
            stack.enter_context(patch.object(where, name, instead))
        # Of gradients alone, not of norms and metrics.
        theirs = stack.enter_context(patch.object(collectives, "dist", _Like(dist)))
        theirs.all_reduce = told(REDUCE)
        yield counted


def _num_references(tensor: torch.Tensor) -> int:
    """To the tensor, and to its memory."""
    memory = torch._C._storage_Use_Count(tensor.untyped_storage()._cdata)
    return tensor._use_count() + memory


class _Like:
    """A module whose functions may be others for one that imports it."""

    def __init__(self, module: Any) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)
