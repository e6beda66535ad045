"""Context parallelism: a packed row with every sequence split over ranks.

With n ranks every sequence is padded at its end to 2 n equal pieces, and rank r has pieces r and 2
n - 1 - r: late tokens attend to many others and early ones to few, so all ranks have equal work.
Three ranks and a sequence of 12 tokens::

    rank 0   0  1 10 11
    rank 1   2  3  8  9
    rank 2   4  5  6  7

Everything but attention works token by token. Attention gathers keys and values, as Llama 3 does
(arXiv 2407.21783, section 3.3.2); the order of a rank's tokens is Transformer Engine's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import lcm

import torch
import torch.distributed as dist
from megatron.core.tensor_parallel import gather_from_sequence_parallel_region

from verl_hpc.engines.shared.packing import ContextSplit, PackedRow, pack, to_device
from verl_hpc.engines.shared.padded import causal_attention


def pack_split(
    sequences: Sequence[torch.Tensor], multiple: int, group: dist.ProcessGroup
) -> PackedRow:
    """Pack (L,) token tensors, each padded so that it divides, and split the row over a group.

    Args:
        sequences: token tensors in the order of the row.
        multiple: each rank's part of the row has a multiple of this length.
        group: the context-parallel ranks.
    """
    num_pieces = 2 * group.size()
    padded = [torch.cat([s, s.new_zeros(-len(s) % num_pieces)]) for s in sequences]
    row = pack(padded, lcm(multiple * group.size(), num_pieces))
    places = to_device(_places(row.lengths, group.size()), row.tokens.device)
    return replace(
        row, real_lengths=tuple(map(len, sequences)), split_over=ContextSplit(places, group)
    )


def _places(lengths: Sequence[int], num_ranks: int) -> torch.Tensor:
    """See `ContextSplit.places`."""
    places: list[torch.Tensor] = []
    start = 0
    for length in lengths:
        pieces = torch.arange(start, start + length).view(2 * num_ranks, -1)
        places.append(torch.cat([pieces[:num_ranks], pieces.flip(0)[:num_ranks]], dim=1))
        start += length
    return torch.cat(places, dim=1)


class SplitAttention:
    """Causal attention from a rank's tokens to their whole sequences (PyTorch's kernels)."""

    def __init__(self, row: PackedRow) -> None:
        assert row.split_over is not None
        self._split, self._group = row.split_over, row.split_over.group
        self._lengths = row.lengths

    def attend(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        scale: float | None,
        window: int = 0,
        sinks: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Attend from (T / n, heads, size) inputs to (T / n, heads, size of values); keys and
        values may have fewer heads, and values another size (see `causal_attention`)."""
        sizes = [key.shape[-1], value.shape[-1]]
        both = gather_from_sequence_parallel_region(torch.cat([key, value], -1), group=self._group)
        key, value = both.index_select(0, self._split.order).split(sizes, dim=-1)
        parts = []
        for own, seen in self._pieces():
            q, k, v = (t.transpose(0, 1)[None] for t in (query[own], key[seen], value[seen]))
            parts.append(causal_attention(q, k, v, scale, window, sinks)[0].transpose(0, 1))
        return torch.cat(parts)

    def _pieces(self) -> Iterator[tuple[slice, slice]]:
        """Yield, for every piece of this rank, the slice of its own tokens and the slice of the row
        it attends to: from its sequence's first token to its own last."""
        rank, num_ranks = self._group.rank(), self._group.size()
        start = own = 0
        for length in self._lengths:
            size = length // (2 * num_ranks)
            for piece in (rank, 2 * num_ranks - 1 - rank):
                yield slice(own, own + size), slice(start, start + (piece + 1) * size)
                own += size
            start += length
