"""A message and its place in one rank's memory, and short ones between pairs of ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist

from verl_hpc.layout.fragments import Fragment


@dataclass(frozen=True)
class Part:
    """Bytes of a message that are copied, and summed, together."""

    data: torch.Tensor
    """Contiguous."""
    copies: Sequence[tuple[torch.Tensor, torch.Tensor]]
    """(to, from): into the bucket before it leaves, or to its places when it has arrived."""


@dataclass(frozen=True)
class Message:
    """A message between this rank and another one in a round."""

    peer: int
    data: torch.Tensor
    """Bytes of the message, uint8: the fragment's own memory, or a bucket."""
    parts: Sequence[Part]
    """Parts that make up the message, in order."""
    in_place: bool
    """Whether it is sent or received without a bucket."""
    fragments: Sequence[Fragment]


def exchange(sends: Mapping[int, torch.Tensor], receives: Mapping[int, torch.Tensor]) -> None:
    """Send a tensor to each rank of one mapping, and fill one from each of the other."""
    operations = [dist.P2POp(dist.isend, data, peer) for peer, data in sends.items()]
    operations += [dist.P2POp(dist.irecv, data, peer) for peer, data in receives.items()]
    for request in dist.batch_isend_irecv(operations) if operations else ():
        request.wait()
