"""The micro-batches whose passes are under way, for layers to look up.

Megatron-core passes through its layers, recomputation included, only a mask tensor or Transformer
Engine's parameters of packed sequences. So the mask carries a ticket, and the parameters carry the
micro-batch itself.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from megatron.core.packed_seq_params import PackedSeqParams

from verl_hpc.engines.megatron.context import SplitAttention
from verl_hpc.engines.shared.invariant import Attend, InvariantAttention
from verl_hpc.engines.shared.packing import PackedRow
from verl_hpc.engines.shared.padded import PaddedAttention

Attention = PaddedAttention | SplitAttention | InvariantAttention
"""Attention on a row held by one rank, or split over several."""


@dataclass(frozen=True)
class RoutedRow:
    """Experts of the t tokens of a packed row that this rank routes."""

    experts: torch.Tensor
    """(t, layers of this rank, k), uint8 or int32."""
    is_given: torch.Tensor
    """(t,) bool: False for a sequence's last token, which the rollout never read, and for padding;
    the router chooses their experts."""


class MicroBatch(NamedTuple):
    """What layers may read of a row."""

    row: PackedRow
    routed: RoutedRow | None
    """Experts of its tokens; None if routers choose."""
    attention: Attention | None
    """None if Transformer Engine computes attention."""


@dataclass
class RowParams(PackedSeqParams):
    """Transformer Engine's parameters of packed sequences, with the micro-batch."""

    micro_batch: MicroBatch | None = None


class MicroBatches:
    """Registry of the micro-batches of PyTorch's layers, by ticket."""

    _tickets = itertools.count()
    _known: dict[int, MicroBatch] = {}

    @classmethod
    def register(
        cls, row: PackedRow, routed: RoutedRow | None = None, attend: Attend | None = None
    ) -> torch.Tensor:
        """Register a row and return its ticket, a CPU scalar, so that reading it never waits for a
        device.

        Args:
            attend: kernel of attention; None takes PyTorch's.
        """
        ticket = next(cls._tickets)
        attention: Attention
        if attend is not None:
            attention = InvariantAttention(row, attend)
        else:
            attention = PaddedAttention(row) if row.split_over is None else SplitAttention(row)
        cls._known[ticket] = MicroBatch(row, routed, attention)
        return torch.tensor(ticket)

    @classmethod
    def attention(cls, ticket: torch.Tensor) -> Attention:
        attention = cls._known[int(ticket)].attention
        assert attention is not None
        return attention

    @classmethod
    def of_call(cls, arguments: Mapping[str, Any]) -> MicroBatch:
        """Return the micro-batch that a layer is called with.

        Args:
            arguments: keyword arguments of a TransformerLayer.
        """
        params = arguments.get("packed_seq_params")
        if params is None:
            return cls._known[int(arguments["attention_mask"])]
        assert params.micro_batch is not None
        return params.micro_batch  # type: ignore[no-any-return]

    @classmethod
    def clear(cls) -> None:
        """Forget all rows; their passes are over."""
        cls._known.clear()
