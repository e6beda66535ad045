"""Sends and receives one rank's messages: several rounds under way, large fragments without a copy.

While the messages of some rounds travel, those of the round before are unpacked and those of the
next one packed. A message of one fragment whose bytes lie in memory as they travel is sent from
there, and received there; others pass through a bucket.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
import torch.distributed as dist

from verl_hpc.layout.moves import Receive, Send, Step
from verl_hpc.transfer.memory import Memory
from verl_hpc.transfer.stats import TransferStats
from verl_hpc.transfer.sums import Sums

_Item = TypeVar("_Item", Send, Receive)


class Buckets:
    """Memory for the messages under way, kept from run to run; made as large as needed.

    Args:
        rounds: under way at a time.
    """

    def __init__(self, rounds: int) -> None:
        self.rounds = rounds
        self._buckets: dict[tuple[str, int], torch.Tensor] = {}

    def take(self, kind: str, place: int, num_bytes: int, device: torch.device) -> torch.Tensor:
        """Bytes of the `place`-th bucket of a kind; what it held before is lost."""
        key = kind, place % self.rounds
        bucket = self._buckets.get(key)
        if bucket is None or bucket.numel() < num_bytes or bucket.device != device:
            bucket = torch.empty(num_bytes, dtype=torch.uint8, device=device)
            self._buckets[key] = bucket
        return bucket[:num_bytes]

    @property
    def num_bytes(self) -> int:
        return sum(bucket.numel() for bucket in self._buckets.values())


@dataclass
class _Round:
    """Messages that are under way."""

    step: Step
    requests: list[dist.Work]
    incoming: torch.Tensor | None


class Exchange:
    """The messages of one run.

    Args:
        memory: what is sent and filled.
        buckets: of this rank.
        sums: of messages sent and received; None to leave them out.
        stats: counted as messages pass.
    """

    def __init__(
        self, memory: Memory, buckets: Buckets, sums: Sums | None, stats: TransferStats
    ) -> None:
        self._memory, self._buckets, self._sums = memory, buckets, sums
        self._stats = stats
        self._device = memory.device

    def run(self, hop: Sequence[Step]) -> None:
        """Send and receive everything of a hop."""
        under_way: list[_Round] = []
        for place, step in enumerate(hop):
            if len(under_way) == self._buckets.rounds:
                self._finish(under_way.pop(0))
            under_way.append(self._begin(step, place))
        for begun in under_way:
            self._finish(begun)
        self._stats.peak_buffer_bytes = self._buckets.num_bytes

    def _begin(self, step: Step, place: int) -> _Round:
        operations, incoming = [], None
        if step.sends:
            outgoing = self._outgoing(step.sends, place)
            operations.append(dist.P2POp(dist.isend, outgoing, step.to))
            self._stats.sent_bytes[step.to] += outgoing.numel()
            self._stats.messages += 1
            if self._sums is not None:
                self._sums.sent(step, outgoing)
        if step.receives:
            incoming = self._incoming(step.receives, place)
            operations.append(dist.P2POp(dist.irecv, incoming, step.frm))
            self._stats.received_bytes[step.frm] += incoming.numel()
        return _Round(step, dist.batch_isend_irecv(operations), incoming)

    def _outgoing(self, message: Sequence[Send], place: int) -> torch.Tensor:
        """The bytes of a message: where they lie, or one fragment behind another in a bucket."""
        if len(message) == 1:
            found = self._memory.read(message[0])
            if self._memory.in_place(found, message[0].fragment):
                return self._counted(found)
        packed = self._buckets.take("send", place, _num_bytes(message), self._device)
        for item, slot in self._slots(packed, message):
            slot.copy_(self._memory.read(item))
        return packed

    def _incoming(self, message: Sequence[Receive], place: int) -> torch.Tensor:
        if len(message) == 1:
            found = self._memory.written(message[0])
            if self._memory.in_place(found, message[0].fragment):
                return self._counted(found)
        return self._buckets.take("receive", place, _num_bytes(message), self._device)

    def _counted(self, found: torch.Tensor) -> torch.Tensor:
        in_place = found.view(-1).view(torch.uint8)
        self._stats.in_place_bytes += in_place.numel()
        return in_place

    def _finish(self, begun: _Round) -> None:
        for request in begun.requests:
            request.wait()
        if begun.incoming is None:
            return
        if self._sums is not None:
            self._sums.received(begun.step, begun.incoming)
        for item, slot in self._slots(begun.incoming, begun.step.receives):
            arrived = slot.data_ptr() == self._memory.written(item).data_ptr()
            self._memory.fill(item.targets[arrived:], item.fragment, slot)

    def _slots(
        self, packed: torch.Tensor, message: Sequence[_Item]
    ) -> list[tuple[_Item, torch.Tensor]]:
        """Each fragment of a message with the part that carries it, in its type and shape."""
        sizes = [item.fragment.num_bytes for item in message]
        return [
            (item, part.view(self._memory.dtype(item.fragment)).view(item.fragment.box.shape))
            for item, part in zip(message, packed.split(sizes), strict=True)
        ]


def _num_bytes(message: Sequence[Send] | Sequence[Receive]) -> int:
    return sum(item.fragment.num_bytes for item in message)
