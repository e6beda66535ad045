"""Everything that one rank sends and receives: by messages, or read from a neighbour's memory.

Of messages several rounds are under way. While those of some rounds travel, those of the round
before are unpacked and those of the next one packed. A message of one fragment whose bytes lie in
memory as they travel is sent from there, and received there; others pass through a bucket.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist

from verl_hpc.layout.fragments import Fragment
from verl_hpc.layout.moves import Receive, Send, Step
from verl_hpc.transfer.memory import Memory
from verl_hpc.transfer.message import Message
from verl_hpc.transfer.reads import Reads
from verl_hpc.transfer.stats import TransferStats
from verl_hpc.transfer.sums import Sums

_Slot = tuple[str, int]
"""("send" or "receive", number): a bucket."""


class Buckets:
    """Memory for the messages under way, kept from run to run."""

    def __init__(self) -> None:
        self._buckets: dict[_Slot, torch.Tensor] = {}

    def make(self, sizes: Mapping[_Slot, int], device: torch.device) -> None:
        """Have buckets of at least these sizes, in bytes."""
        for slot, num_bytes in sizes.items():
            bucket = self._buckets.get(slot)
            if bucket is None or bucket.numel() < num_bytes or bucket.device != device:
                self._buckets[slot] = torch.empty(num_bytes, dtype=torch.uint8, device=device)

    def __getitem__(self, slot: _Slot) -> torch.Tensor:
        return self._buckets[slot]

    @property
    def num_bytes(self) -> int:
        return sum(bucket.numel() for bucket in self._buckets.values())


@dataclass(frozen=True)
class _Round:
    """At most one message each way."""

    outgoing: Message | None
    incoming: Message | None


@dataclass(frozen=True)
class _Hop:
    rounds: Sequence[_Round]
    reads: Reads


class Exchange:
    """All hops of one rank, bound to the memory that is sent and filled.

    Args:
        hops: the rank's steps in each hop.
        memory: what is sent and filled.
        buckets: of this rank.
        rounds: under way at a time.
        neighbours: process numbers of the ranks that read this one's memory, and that it reads.
    """

    def __init__(
        self,
        hops: Sequence[Sequence[Step]],
        memory: Memory,
        buckets: Buckets,
        rounds: int,
        neighbours: Mapping[int, int],
    ) -> None:
        self._memory, self._buckets, self._num_under_way = memory, buckets, rounds
        far = [_without(hop, neighbours) for hop in hops]
        buckets.make(self._sizes(far), memory.device)
        self._hops = [
            _Hop(
                [self._round(step, place) for place, step in enumerate(rest)],
                Reads(hop, memory, neighbours),
            )
            for hop, rest in zip(hops, far, strict=True)
        ]

    @property
    def shown(self) -> set[Fragment]:
        """Fragments that neighbours read."""
        return {fragment for hop in self._hops for fragment in hop.reads.shown}

    def run(self, sums: Sums | None, stats: TransferStats) -> None:
        """Send and receive everything.

        Args:
            sums: of messages sent and received; None to leave them out.
            stats: counted as messages pass.
        """
        for hop in self._hops:
            hop.reads.run(sums, stats)
            under_way: list[tuple[_Round, list[dist.Work]]] = []
            for each in hop.rounds:
                if len(under_way) == self._num_under_way:
                    _finish(*under_way.pop(0), sums)
                under_way.append((each, _begin(each, sums, stats)))
            for begun in under_way:
                _finish(*begun, sums)
        scratch = sum(hop.reads.scratch_bytes for hop in self._hops)
        stats.peak_buffer_bytes = self._buckets.num_bytes + scratch

    def _sizes(self, hops: Sequence[Sequence[Step]]) -> dict[_Slot, int]:
        """Bytes that each bucket must hold."""
        sizes: dict[_Slot, int] = defaultdict(int)
        for hop in hops:
            for place, step in enumerate(hop):
                for kind, items in (("send", step.sends), ("receive", step.receives)):
                    if items and self._where_it_lies(items) is None:
                        slot = kind, place % self._num_under_way
                        sizes[slot] = max(sizes[slot], _num_bytes(items))
        return sizes

    def _round(self, step: Step, place: int) -> _Round:
        number = place % self._num_under_way
        return _Round(
            self._outgoing(step, ("send", number)) if step.sends else None,
            self._incoming(step, ("receive", number)) if step.receives else None,
        )

    def _outgoing(self, step: Step, slot: _Slot) -> Message:
        fragments = [item.fragment for item in step.sends]
        data = self._where_it_lies(step.sends)
        if data is not None:
            return Message(step.to, data, (), True, fragments)
        packed = self._buckets[slot][: _num_bytes(step.sends)]
        windows = map(self._memory.read, step.sends)
        copies = list(zip(self._parts(packed, fragments), windows, strict=True))
        return Message(step.to, packed, copies, False, fragments)

    def _incoming(self, step: Step, slot: _Slot) -> Message:
        fragments = [item.fragment for item in step.receives]
        data = self._where_it_lies(step.receives)
        in_place = data is not None
        if data is None:
            data = self._buckets[slot][: _num_bytes(step.receives)]
        copies = [
            (window, part)
            for item, part in zip(step.receives, self._parts(data, fragments), strict=True)
            for window in self._memory.windows(item.targets[in_place:], item.fragment)
        ]
        return Message(step.frm, data, copies, in_place, fragments)

    def _where_it_lies(self, items: Sequence[Send] | Sequence[Receive]) -> torch.Tensor | None:
        """The bytes of a message in source or target memory, if they lie there as they travel."""
        if len(items) > 1:
            return None
        item: Send | Receive = items[0]
        if isinstance(item, Send):
            found = self._memory.read(item)
        else:
            found = self._memory.windows(item.targets[:1], item.fragment)[0]
        if not self._memory.in_place(found, item.fragment):
            return None
        return found.view(-1).view(torch.uint8)

    def _parts(self, data: torch.Tensor, fragments: Sequence[Fragment]) -> list[torch.Tensor]:
        """The part of a message that carries each fragment, in its type and shape."""
        parts = data.split([fragment.num_bytes for fragment in fragments])
        return [
            part.view(self._memory.dtype(fragment)).view(fragment.box.shape)
            for fragment, part in zip(fragments, parts, strict=True)
        ]


def _without(hop: Sequence[Step], peers: Collection[int]) -> list[Step]:
    """The steps that messages are left for."""
    kept = [
        Step(
            step.to,
            () if step.to in peers else step.sends,
            step.frm,
            () if step.frm in peers else step.receives,
        )
        for step in hop
    ]
    return [step for step in kept if step.sends or step.receives]


def _begin(each: _Round, sums: Sums | None, stats: TransferStats) -> list[dist.Work]:
    operations = []
    if each.outgoing is not None:
        message = each.outgoing
        _copy(message)
        operations.append(dist.P2POp(dist.isend, message.data, message.peer))
        stats.sent(message)
        if sums is not None:
            sums.sent(message.peer, message.fragments, message.data)
    if each.incoming is not None:
        message = each.incoming
        operations.append(dist.P2POp(dist.irecv, message.data, message.peer))
        stats.received(message)
    requests: list[dist.Work] = dist.batch_isend_irecv(operations)
    return requests


def _finish(each: _Round, requests: Sequence[dist.Work], sums: Sums | None) -> None:
    for request in requests:
        request.wait()
    if each.incoming is not None:
        message = each.incoming
        if sums is not None:
            sums.received(message.peer, message.fragments, message.data)
        _copy(message)


def _copy(message: Message) -> None:
    for to, frm in message.copies:
        to.copy_(frm)


def _num_bytes(items: Sequence[Send] | Sequence[Receive]) -> int:
    return sum(item.fragment.num_bytes for item in items)
