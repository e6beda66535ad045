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
    """How some sequences are split into micro-batches."""

    bins: Sequence[Sequence[int]]
    """Indices of each micro-batch's sequences."""
    shared: Sequence[int]
    """Tokens that each sequence shares with the one before it."""


@dataclass(frozen=True)
class Planner:
    """Plans the micro-batches of one rank's replica."""

    layout: TrainLayout
    hidden_size: int
    max_tokens: int
    """Token limit of a micro-batch."""
    shares_tokens: bool
    """Whether sequences with a common prefix share its tokens in a row, which Transformer Engine's
    attention does not support."""
    largest: Callable[[int, int], tuple[int, int]]
    """Element-wise maximum of two numbers over all replicas, which call it together."""
    replicas_wait: bool = False
    """Whether replicas gather parameters from each other in every micro-batch."""
    pads: bool = False
    """Whether all sequences of a micro-batch are padded to its longest one."""

    def plan(self, sequences: Sequence[torch.Tensor], together: int = 1) -> Plan:
        """Assign sequences to micro-batches; runs of `together` neighbours are never split.

        With a pipeline, or with experts or all parameters spread over replicas, all replicas get
        the same number of micro-batches, as they wait for each other; every rank of the layout
        calls it.
        """
        if self.pads:
            return self._padded_plan([len(s) for s in sequences], together)
        lengths, most = [self._padded(len(s)) for s in sequences], self.max_tokens
        stages = self.layout.pp
        if stages > 1:
            # Small enough for as many micro-batches as fill the pipeline.
            most = min(most, sum(lengths) // max(wanted(lengths, stages), 1) + 1)
        shared = num_shared(sequences) if self.shares_tokens else [0] * len(sequences)
        units, sizes = share_units(lengths, shared, most, together)
        bins = micro_batches(sizes, self.max_tokens, self._multiple)
        if stages > 1 or self.layout.ep > 1 or self.replicas_wait:
            fills = wanted(sizes, stages) if stages > 1 else 0
            count = self._full(len(bins), fills)
            costs = [
                self._cost([lengths[i] for i in u], n) for u, n in zip(units, sizes, strict=True)
            ]
            bins = dealt_to(count, bins, sizes, costs, self.max_tokens)
        return Plan([[i for unit in chosen for i in units[unit]] for chosen in bins], shared)

    def _padded_plan(self, lengths: Sequence[int], together: int) -> Plan:
        """Assign sequences of similar lengths to micro-batches whose rectangles have at most
        `max_tokens` tokens; only a run of neighbours by itself may have more."""
        units = [
            range(i, min(i + together, len(lengths))) for i in range(0, len(lengths), together)
        ]
        bins: list[list[int]] = []
        for unit in sorted(units, key=lambda u: -max(lengths[i] for i in u)):
            # The first of a bin has the longest sequence of all that come.
            longest = max(lengths[i] for i in (bins[-1] if bins else unit))
            if bins and (len(bins[-1]) + len(unit)) * longest <= self.max_tokens:
                bins[-1] += unit
            else:
                bins.append(list(unit))
        count = self._full(max(len(bins), 1), 0)
        return Plan([*bins, *([] for _ in range(count - len(bins)))], [0] * len(lengths))

    def _padded(self, length: int) -> int:
        """Return a sequence's length in a row: context-parallel ranks have equal pieces of it."""
        return length + -length % (2 * self.layout.cp) if self.layout.cp > 1 else length

    @property
    def _multiple(self) -> int:
        """Divisor of the number of micro-batches: an interleaved pipeline's number of stages."""
        return self.layout.pp if self.layout.vpp > 1 else 1

    def _cost(self, lengths: Sequence[int], row_length: int) -> float:
        """Return the cost of sequences packed into `row_length` tokens: linear layers compute
        shared tokens once, attention once per sequence."""
        whole = sum(attention_cost(length, self.hidden_size) for length in lengths)
        return whole - (sum(lengths) - row_length)

    def _full(self, needed: int, fills: int) -> int:
        """Return a number of micro-batches that all replicas need, and that fills the pipeline."""
        if self.layout.num_replicas > 1:
            # The largest need, and of what would fill the least, for which none is empty.
            needed, negative = self.largest(needed, -fills)
            fills = -negative
        count = max(needed, fills)
        return count + -count % self._multiple
