"""How sequences are cut into micro-batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from verl_hpc.engines.shared.shared_prefixes import num_shared, share_units
from verl_hpc.layout.megatron import TrainLayout
from verl_hpc.placement.balance import attention_cost, micro_batches
from verl_hpc.placement.pipeline_fill import dealt_to, wanted


@dataclass(frozen=True)
class Plan:
    """Of some sequences."""

    bins: Sequence[Sequence[int]]
    """Indices of each micro-batch's sequences."""
    shared: Sequence[int]
    """Tokens that each sequence shares with the one before it."""


@dataclass(frozen=True)
class Planner:
    """Plans of one rank's replica."""

    layout: TrainLayout
    hidden_size: int
    max_tokens: int
    """Of a micro-batch."""
    shares_tokens: bool
    """Whether sequences that begin alike share tokens of a row. Transformer Engine's attention
    takes a row as it is."""
    largest: Callable[[int, int], tuple[int, int]]
    """Of all replicas' numbers, the largest of each of the two; all of them call it."""
    replicas_wait: bool = False
    """Whether replicas gather parameters from each other in every micro-batch."""

    def plan(self, sequences: Sequence[torch.Tensor], together: int = 1) -> Plan:
        """What each micro-batch is of; so many neighbours are never parted.

        In a pipeline, and where experts or all parameters are on several replicas, all replicas get
        the same number of them, as they will wait for each other: every rank of the layout calls
        it.
        """
        lengths, most = [self._padded(len(s)) for s in sequences], self.max_tokens
        stages = self.layout.pp
        if stages > 1:
            # Small enough for as many micro-batches as fill the pipeline.
            most = min(most, sum(lengths) // max(wanted(lengths, stages), 1) + 1)
        shared = num_shared(sequences) if self.shares_tokens else [0] * len(sequences)
        units, sizes = share_units(lengths, shared, most, together)
        found = micro_batches(sizes, self.max_tokens, self._multiple)
        if stages > 1 or self.layout.ep > 1 or self.replicas_wait:
            fills = wanted(sizes, stages) if stages > 1 else 0
            count = self._full(len(found), fills)
            costs = [
                self._cost([lengths[i] for i in u], n) for u, n in zip(units, sizes, strict=True)
            ]
            found = dealt_to(count, found, sizes, costs, self.max_tokens)
        return Plan([[i for unit in chosen for i in units[unit]] for chosen in found], shared)

    def _padded(self, length: int) -> int:
        """What a sequence is in a row: context-parallel ranks have equal pieces of it."""
        return length + -length % (2 * self.layout.cp) if self.layout.cp > 1 else length

    @property
    def _multiple(self) -> int:
        """An interleaved pipeline takes micro-batches by the number of its stages."""
        return self.layout.pp if self.layout.vpp > 1 else 1

    def _cost(self, lengths: Sequence[int], row_length: int) -> float:
        """Of sequences that are so many tokens in a row: attention reads shared ones for each."""
        whole = sum(attention_cost(length, self.hidden_size) for length in lengths)
        return whole - (sum(lengths) - row_length)

    def _full(self, needed: int, fills: int) -> int:
        """So many micro-batches as are needed, and as fill the pipeline, on all replicas."""
        if self.layout.num_replicas > 1:
            # The largest need, and of what would fill the least, for which none is empty.
            needed, negative = self.largest(needed, -fills)
            fills = -negative
        count = max(needed, fills)
        return count + -count % self._multiple
