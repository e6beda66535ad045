"""A message and its place in one rank's memory, what is counted of messages, and short ones between
pairs of ranks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

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


@dataclass
class TransferStats:
    """Payload bytes of one rank; checksums are not counted."""

    sent_bytes: Counter[int] = field(default_factory=Counter)
    """Bytes sent to each rank."""
    received_bytes: Counter[int] = field(default_factory=Counter)
    """Bytes received from each rank."""
    copied_bytes: int = 0
    """Bytes copied from the rank's own source memory."""
    read_bytes: int = 0
    """Bytes read from files."""
    messages: int = 0
    """Messages sent."""
    in_place_bytes: int = 0
    """Bytes sent or received without a copy through a bucket."""
    peak_buffer_bytes: int = 0
    """Bytes of all buckets together."""
    seconds: float = 0.0

    def sent(self, message: Message) -> None:
        """Count a message that leaves."""
        self.sent_bytes[message.peer] += message.data.numel()
        self.messages += 1
        self.in_place_bytes += message.in_place * message.data.numel()

    def received(self, message: Message) -> None:
        """Count a message that arrives."""
        self.received_bytes[message.peer] += message.data.numel()
        self.in_place_bytes += message.in_place * message.data.numel()


def exchange(sends: Mapping[int, torch.Tensor], receives: Mapping[int, torch.Tensor]) -> None:
    """Send a tensor to each rank of one mapping, and fill one from each of the other."""
    operations = [dist.P2POp(dist.isend, data, peer) for peer, data in sends.items()]
    operations += [dist.P2POp(dist.irecv, data, peer) for peer, data in receives.items()]
    for request in dist.batch_isend_irecv(operations) if operations else ():
        request.wait()
