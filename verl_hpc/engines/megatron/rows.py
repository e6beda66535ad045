"""Micro-batches whose forward or backward pass is under way, as layers find them.

Megatron-core hands a mask tensor through its layers, or what Transformer Engine is told of packed
sequences; both also through recomputation, but nothing else. So the mask carries a ticket, and the
other the micro-batch itself.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from megatron.core.packed_seq_params import PackedSeqParams

from verl_hpc.engines.megatron.context import SplitAttention
from verl_hpc.engines.shared.packing import PackedRow
from verl_hpc.engines.shared.padded import PaddedAttention

Attention = PaddedAttention | SplitAttention
"""Of a row on one rank, or split over several."""


@dataclass(frozen=True)
class RoutedRow:
    """Experts of the tokens of a packed row that this rank routes, t of them."""

    experts: torch.Tensor
    """(t, layers of this rank, k), uint8 or int32."""
    is_given: torch.Tensor
    """(t,) bool: False of a sequence's last token, which the rollout never read, and of padding:
    they go where the router likes."""


class MicroBatch(NamedTuple):
    """What layers may ask of a row."""

    row: PackedRow
    routed: RoutedRow | None
    """Where its tokens go; None where routers choose."""
    attention: Attention | None
    """None where Transformer Engine computes it."""


@dataclass
class RowParams(PackedSeqParams):
    """What Transformer Engine's layers are told of a row."""

    micro_batch: MicroBatch | None = None


class MicroBatches:
    """Those of PyTorch's layers, by their tickets."""

    _tickets = itertools.count()
    _known: dict[int, MicroBatch] = {}

    @classmethod
    def register(cls, row: PackedRow, routed: RoutedRow | None = None) -> torch.Tensor:
        """A ticket for the row; a CPU scalar, so that reading it never waits for a device."""
        ticket = next(cls._tickets)
        attention = PaddedAttention(row) if row.split_over is None else SplitAttention(row)
        cls._known[ticket] = MicroBatch(row, routed, attention)
        return torch.tensor(ticket)

    @classmethod
    def attention(cls, ticket: torch.Tensor) -> Attention:
        found = cls._known[int(ticket)].attention
        assert found is not None
        return found

    @classmethod
    def of_call(cls, arguments: Mapping[str, Any]) -> MicroBatch:
        """The micro-batch that a layer is called with.

        Args:
            arguments: of a TransformerLayer, by keyword.
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
