"""Everything that one rank sends and receives, by messages or by reads of a neighbour's memory.

Several rounds of messages are in flight. While some travel, the previous round is unpacked and the
next one packed. A message of a single fragment that lies in memory as it travels is sent from and
received into place; others pass through a bucket, piece by piece, so that each piece is still in a
core's cache when it is summed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist

from verl_hpc.layout.fragments import Fragment
from verl_hpc.layout.moves import Receive, Send, Step
from verl_hpc.transfer.checksum import Digest, checksum
from verl_hpc.transfer.memory import Memory, in_pieces
from verl_hpc.transfer.message import Message, Part, TransferStats
from verl_hpc.transfer.reads import Reads
from verl_hpc.transfer.sums import Sum, Sums

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
        rounds: number of rounds in flight at a time.
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
    def summed_alone(self) -> set[Fragment]:
        """Fragments that neighbours read, or that are a message each."""
        read = {fragment for hop in self._hops for fragment in hop.reads.shown}
        messages = [each.outgoing for hop in self._hops for each in hop.rounds if each.outgoing]
        return read | {m.fragments[0] for m in messages if len(m.fragments) == 1}

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
            return Message(step.to, data, [Part(data, ())], True, fragments)
        packed = self._buckets[slot][: _num_bytes(step.sends)]
        parts = [
            Part(piece, [(piece, frm)])
            for item, part in zip(step.sends, self._of_fragments(packed, fragments), strict=True)
            for piece, frm in in_pieces(part, self._memory.read(item))
        ]
        return Message(step.to, packed, parts, False, fragments)

    def _incoming(self, step: Step, slot: _Slot) -> Message:
        fragments = [item.fragment for item in step.receives]
        data = self._where_it_lies(step.receives)
        in_place = data is not None
        if data is None:
            data = self._buckets[slot][: _num_bytes(step.receives)]
        parts = []
        for item, part in zip(step.receives, self._of_fragments(data, fragments), strict=True):
            places = self._memory.windows(item.targets[in_place:], item.fragment)
            for piece, *tos in in_pieces(part, *places):
                parts.append(Part(piece, [(to, piece) for to in tos]))
        return Message(step.frm, data, parts, in_place, fragments)

    def _where_it_lies(self, items: Sequence[Send] | Sequence[Receive]) -> torch.Tensor | None:
        """The bytes of a message in source or target memory, if they lie there as they travel."""
        if len(items) > 1:
            return None
        item: Send | Receive = items[0]
        if isinstance(item, Send):
            held = self._memory.read(item)
        else:
            held = self._memory.windows(item.targets[:1], item.fragment)[0]
        if not self._memory.in_place(held, item.fragment):
            return None
        return held.view(-1).view(torch.uint8)

    def _of_fragments(
        self, data: torch.Tensor, fragments: Sequence[Fragment]
    ) -> list[torch.Tensor]:
        """The part of a message that carries each fragment, in its type and shape."""
        parts = data.split([fragment.num_bytes for fragment in fragments])
        return [
            part.view(self._memory.dtype(fragment)).view(fragment.shape)
            for fragment, part in zip(fragments, parts, strict=True)
        ]


def _without(hop: Sequence[Step], peers: Collection[int]) -> list[Step]:
    """Drop messages from and to `peers`, and steps that have no other."""
    kept = [step.without(peers) for step in hop]
    return [step for step in kept if step.sends or step.receives]


def _begin(each: _Round, sums: Sums | None, stats: TransferStats) -> list[dist.Work]:
    operations = []
    if each.outgoing is not None:
        message = each.outgoing
        checksum_sent = _copy(
            message, summed=sums is not None and not sums.knows(message.fragments)
        )
        operations.append(dist.P2POp(dist.isend, message.data, message.peer))
        stats.sent(message)
        if sums is not None:
            sums.sent(message.peer, message.fragments, checksum_sent)
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
        checksum_received = _copy(message, summed=sums is not None)
        if sums is not None and checksum_received is not None:
            sums.received(message.peer, message.fragments, checksum_received)


def _copy(message: Message, summed: bool) -> Sum | None:
    """Copy a message into or out of its bucket; return its checksum if wanted, taken part by part
    in host memory."""
    on_host = message.data.device.type == "cpu"
    digest = Digest()
    for part in message.parts:
        for to, frm in part.copies:
            to.copy_(frm)
        if summed and on_host:
            digest.add(part.data)
    if not summed:
        return None
    return digest.found() if on_host else checksum(message.data)


def _num_bytes(items: Sequence[Send] | Sequence[Receive]) -> int:
    return sum(item.fragment.num_bytes for item in items)
