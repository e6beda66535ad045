"""Sum gradients and share weights between data-parallel CPU ranks of one node.

gloo's reduce-scatter copies its input, sums all of it on every rank and keeps a part; its
all-gather uses sockets even within a host. Here every rank reads what it needs from the others'
memory. If the group spans several nodes, or a rank may not read another's memory, all use gloo::

    reduce_scatter, 4 parts of 8 elements    rank 1 adds 8..15 of ranks 0, 2 and 3 to its own
    all_gather                               rank 1 reads 0..7 of rank 0, 16..23 of rank 2, ...

Ranks are added in ascending order, so sums of three or more may round differently than gloo's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from weakref import WeakKeyDictionary

import numpy as np
import torch
import torch.distributed as dist

from verl_hpc.transfer.memory import PIECE_BYTES
from verl_hpc.transfer.process_memory import read_memory, readable_processes

_found: WeakKeyDictionary[dist.ProcessGroup, list[int] | None] = WeakKeyDictionary()


def reduce_scatter(
    output: torch.Tensor,
    input: torch.Tensor,  # noqa: A002 (as torch.distributed names it)
    op: dist.ReduceOp.RedOpType = dist.ReduceOp.SUM,
    group: dist.ProcessGroup | None = None,
    async_op: bool = False,
) -> None:
    """`torch.distributed.reduce_scatter_tensor` for what Megatron-core asks of it.

    Args:
        output: (n,), this rank's part of `input`, in its memory.
        input: (size * n,) of the same type.

    Raises:
        OSError: another rank's memory cannot be read any more.
    """
    assert group is not None and op == dist.ReduceOp.SUM and not async_op
    if group.size() == 1:
        return
    rank, first = group.rank(), input.data_ptr()
    place = output.data_ptr() - first
    assert place == rank * output.nbytes, "not in place"
    processes = _processes(group)
    if processes is None:
        dist.reduce_scatter_tensor(output, input, op=op, group=group)
        return
    addresses = _addresses(first, group)
    others = [peer for peer in range(group.size()) if peer != rank]
    read = output.new_empty(PIECE_BYTES // output.element_size())
    for piece, offset in _pieces(output):
        for peer in others:
            address = addresses[peer] + place + offset
            piece.add_(_read(processes[peer], address, read[: len(piece)]))
    _meet(group)


def all_gather(
    output: torch.Tensor,
    input: torch.Tensor,  # noqa: A002 (as torch.distributed names it)
    group: dist.ProcessGroup | None = None,
    async_op: bool = False,
) -> None:
    """`torch.distributed.all_gather_into_tensor` for what Megatron-core asks of it.

    Args:
        output: (size * n,).
        input: (n,), this rank's part of `output`, in its memory.

    Raises:
        OSError: another rank's memory cannot be read any more.
    """
    assert group is not None and not async_op
    if group.size() == 1:
        return
    rank, mine = group.rank(), input.data_ptr()
    place = mine - output.data_ptr()
    assert place == rank * input.nbytes, "not in place"
    processes = _processes(group)
    if processes is None:
        dist.all_gather_into_tensor(output, input, group=group)
        return
    addresses = _addresses(mine, group)
    for peer, part in enumerate(output.view(group.size(), -1)):
        if peer != rank:
            for piece, offset in _pieces(part):
                _read(processes[peer], addresses[peer] + offset, piece)
    _meet(group)


def _pieces(tensor: torch.Tensor) -> Iterator[tuple[torch.Tensor, int]]:
    """Yield pieces of a flat tensor with their byte offsets from its start."""
    num = PIECE_BYTES // tensor.element_size()
    for first in range(0, len(tensor), num):
        yield tensor[first : first + num], first * tensor.element_size()


def _read(process: int, address: int, to: torch.Tensor) -> torch.Tensor:
    read_memory(process, address, np.array([[0, to.nbytes]]), to)
    return to


def _processes(group: dist.ProcessGroup) -> list[int] | None:
    """Return the process ids of a group's ranks if each may read the others' memory; else None."""
    if group not in _found:
        others = [rank for rank in range(group.size()) if rank != group.rank()]
        _found[group] = readable_processes(lambda numbers: _gathered(numbers, group), others)
    return _found[group]


def _gathered(numbers: Sequence[int], group: dist.ProcessGroup) -> list[list[int]]:
    """Gather the numbers of every rank, by rank; returns once all ranks have called it."""
    mine = torch.tensor(numbers)
    by_rank = mine.new_empty(group.size(), len(mine))
    # Megatron-core is collecting calls to run together; of this form none is put off.
    dist.all_gather(list(by_rank), mine, group=group)
    return by_rank.tolist()


def _addresses(address: int, group: dist.ProcessGroup) -> list[int]:
    return [theirs for (theirs,) in _gathered([address], group)]


def _meet(group: dist.ProcessGroup) -> None:
    """Wait until no rank reads any more."""
    _gathered([0], group)
