"""Where the tokens of a micro-batch go, if their routers do not choose."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from megatron.core.packed_seq_params import PackedSeqParams

from verl_hpc.engines.megatron.packing import PackedRow


@dataclass(frozen=True)
class RoutedRow:
    """Experts of the tokens of a packed row that this rank routes, t of them."""

    experts: torch.Tensor
    """(t, layers of this rank, k), uint8 or int32."""
    is_given: torch.Tensor
    """(t,) bool: False of a sequence's last token, which the rollout never read, and of padding:
    they go where the router likes."""


@dataclass
class RoutedParams(PackedSeqParams):
    """What Transformer Engine's layers are told of a row, with the row and its tokens' experts."""

    row: PackedRow | None = None
    routed: RoutedRow | None = None
