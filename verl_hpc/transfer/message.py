"""A message and its place in one rank's memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from verl_hpc.layout.fragments import Fragment


@dataclass(frozen=True)
class Message:
    """What travels between this rank and another one in a round."""

    peer: int
    data: torch.Tensor
    """Its bytes, uint8: where the fragment lies, or in a bucket."""
    copies: Sequence[tuple[torch.Tensor, torch.Tensor]]
    """(to, from): into the bucket before it leaves, or to all its places when it has arrived."""
    in_place: bool
    """Whether it is sent or received without a bucket."""
    fragments: Sequence[Fragment]
