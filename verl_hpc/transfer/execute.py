"""Carries out one rank's part of a plan: pack, exchange, unpack into the target's own memory.

Messages follow one global order, so that no rank waits for a message that is not coming: in step s
rank r sends to r + s and receives from r - s. One bucket per direction is all the extra memory.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest

import torch
import torch.distributed as dist

from verl_hpc.errors import TransferError
from verl_hpc.layout.box import View
from verl_hpc.layout.fragments import Fragment
from verl_hpc.layout.moves import Hop, RankMoves, Receive, Send, moves_of
from verl_hpc.layout.planner import Plan
from verl_hpc.transfer.checksum import checksum
from verl_hpc.transfer.files import Reader

_SUM_BYTES = 8
_NO_SUM = torch.zeros((), dtype=torch.int64)


@dataclass
class TransferStats:
    """What one rank moved in one transfer; payload bytes, checksums not counted."""

    sent_bytes: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    """By receiving rank."""
    received_bytes: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    """By sending rank."""
    copied_bytes: int = 0
    read_bytes: int = 0
    messages: int = 0
    peak_buffer_bytes: int = 0
    """Send and receive buckets together, checksums included."""
    seconds: float = 0.0

    @property
    def total_received_bytes(self) -> int:
        return sum(self.received_bytes.values())


def _call(work: Callable[[], None]) -> None:
    work()


class Transfer:
    """A plan bound to one rank's memory; run it as often as the source changes.

    Every rank that the plan names must run it at the same time. Tensors are bound by local name
    and must be contiguous; their memory may change between runs, their size may not.

    Args:
        plan: the whole plan, the same on every rank.
        rank: this rank; holders of the plan are ranks of the default process group.
        reader: reads the plan's files, if it has any.
        verify: compare a checksum of every received fragment with the sender's.
        nodes: name of each rank's node, for the message where a checksum differs.
    """

    def __init__(
        self,
        plan: Plan,
        rank: int,
        reader: Reader | None = None,
        verify: bool = True,
        nodes: Sequence[str] = (),
    ) -> None:
        self.moves: RankMoves = moves_of(plan, rank)
        self.reader = reader
        self.verify = verify
        self.nodes = nodes

    def run(
        self,
        source: Mapping[str, torch.Tensor],
        target: Mapping[str, torch.Tensor],
        dtypes: Mapping[str, torch.dtype] | torch.dtype,
        together: Callable[[Callable[[], None]], None] = _call,
    ) -> TransferStats:
        """Fill every region of `target` that the plan names.

        Args:
            source: this rank's source tensors by local name.
            target: this rank's target tensors by local name.
            dtypes: element type on the wire, which is the target's, by logical tensor or for all.
            together: runs the reading of files, which may fail on one rank, so that no rank goes
                on to wait for it (`Control.together`).

        Raises:
            TransferError: a received fragment's checksum differs from the sender's.
        """
        start = time.perf_counter()
        run = _Run(self.moves.rank, source, target, dtypes, self.verify, self.nodes)
        with torch.no_grad():
            for copy in self.moves.copies:
                run.fill(
                    copy.targets, copy.fragment, run.window(source, copy.source, copy.fragment)
                )
                run.stats.copied_bytes += copy.fragment.num_bytes
            together(lambda: self._read(run))
            for hop in self.moves.hops:
                run.exchange(hop)
        if run.device.type == "cuda":
            torch.cuda.synchronize(run.device)
        run.stats.seconds = time.perf_counter() - start
        return run.stats

    def _read(self, run: _Run) -> None:
        for read in self.moves.reads:
            assert self.reader is not None
            data = self.reader.read(read.file, read.dataset, read.box)
            run.fill(read.targets, read.fragment, data)
            run.stats.read_bytes += read.fragment.num_bytes


class _Run:
    def __init__(
        self,
        rank: int,
        source: Mapping[str, torch.Tensor],
        target: Mapping[str, torch.Tensor],
        dtypes: Mapping[str, torch.dtype] | torch.dtype,
        verify: bool,
        nodes: Sequence[str],
    ) -> None:
        self.rank = rank
        self.source, self.target = source, target
        self.dtypes = dtypes
        self.verify = verify
        self.nodes = nodes
        self.stats = TransferStats()
        anything = next(iter([*target.values(), *source.values()]), None)
        self.device = torch.device("cpu") if anything is None else anything.device

    def dtype(self, fragment: Fragment) -> torch.dtype:
        if isinstance(self.dtypes, torch.dtype):
            return self.dtypes
        return self.dtypes[fragment.tensor]

    def window(
        self, memory: Mapping[str, torch.Tensor], view: View, fragment: Fragment
    ) -> torch.Tensor:
        tensor = memory[view.name]
        assert tensor.is_contiguous(), f"{view.name} is not contiguous"
        first = tensor.storage_offset() + view.offset
        return tensor.as_strided(fragment.box.shape, view.strides, first)

    def fill(self, views: Sequence[View], fragment: Fragment, data: torch.Tensor) -> None:
        for view in views:
            self.window(self.target, view, fragment).copy_(data)

    def exchange(self, hop: Hop) -> None:
        """Send and receive the messages of one hop, at most one of each at a time."""
        buckets = _Buckets(hop, self.device)
        self.stats.peak_buffer_bytes = max(self.stats.peak_buffer_bytes, buckets.num_bytes)
        for to, sends, frm, receives in _steps(hop, self.rank, dist.get_world_size()):
            operations = []
            if sends is not None:
                outgoing = self._pack(buckets.send, sends)
                operations.append(dist.P2POp(dist.isend, outgoing, to))
                self.stats.sent_bytes[to] += sum(s.fragment.num_bytes for s in sends)
                self.stats.messages += 1
            if receives is not None:
                incoming = buckets.receive[: _message_bytes(receives)]
                operations.append(dist.P2POp(dist.irecv, incoming, frm))
            for request in dist.batch_isend_irecv(operations):
                request.wait()
            if receives is not None:
                self._unpack(incoming, receives, frm)
                self.stats.received_bytes[frm] += sum(r.fragment.num_bytes for r in receives)

    def _pack(self, bucket: torch.Tensor, message: Sequence[Send]) -> torch.Tensor:
        """Fragments one behind another, then their checksums."""
        packed = bucket[: _message_bytes(message)]
        offset = 0
        sums = []
        for item in message:
            memory = self.target if item.relay else self.source
            slot = self._slot(packed, offset, item.fragment)
            slot.copy_(self.window(memory, item.view, item.fragment))
            sums.append(checksum(slot) if self.verify else _NO_SUM.to(self.device))
            offset += item.fragment.num_bytes
        packed[-_SUM_BYTES * len(message) :].copy_(torch.stack(sums).view(torch.uint8))
        return packed

    def _unpack(self, packed: torch.Tensor, message: Sequence[Receive], sender: int) -> None:
        offset = 0
        arrived = []
        for item in message:
            self.fill(item.targets, item.fragment, self._slot(packed, offset, item.fragment))
            offset += item.fragment.num_bytes
            if self.verify:
                arrived.append(checksum(self.window(self.target, item.targets[0], item.fragment)))
        if self.verify:
            sent = packed[-_SUM_BYTES * len(message) :].view(torch.int64)
            wrong = torch.stack(arrived).to(sent.device) != sent
            if bool(wrong.any()):
                self._complain(message, wrong, sender)

    def _slot(self, packed: torch.Tensor, offset: int, fragment: Fragment) -> torch.Tensor:
        """The part of a message that carries one fragment, in its type and shape."""
        part = packed[offset : offset + fragment.num_bytes]
        return part.view(self.dtype(fragment)).view(fragment.box.shape)

    def _complain(self, message: Sequence[Receive], wrong: torch.Tensor, sender: int) -> None:
        bad = [item.fragment for item, w in zip(message, wrong.tolist(), strict=True) if w]
        raise TransferError(
            f"rank {self.rank}: {len(bad)} of {len(message)} fragments from rank {sender} differ "
            f"from what was sent, first {bad[0].tensor} {bad[0].box.start}..{bad[0].box.stop}; "
            f"{self._suspects(sender)} corrupted data, or the network did"
        )

    def _suspects(self, sender: int) -> str:
        if not self.nodes:
            return "a device"
        names = ",".join(sorted({self.nodes[self.rank], self.nodes[sender]}))
        return f"resume with --exclude={names}: a device there"


def _message_bytes(message: Sequence[Send] | Sequence[Receive]) -> int:
    payload = sum(item.fragment.num_bytes for item in message)
    return -(-payload // _SUM_BYTES) * _SUM_BYTES + _SUM_BYTES * len(message)


class _Buckets:
    """One buffer per direction, as large as the hop's largest message."""

    def __init__(self, hop: Hop, device: torch.device) -> None:
        self.send = self._buffer(hop.sends, device)
        self.receive = self._buffer(hop.receives, device)
        self.num_bytes = self.send.numel() + self.receive.numel()

    @staticmethod
    def _buffer(
        by_peer: Mapping[int, Sequence[Sequence[Send]]] | Mapping[int, Sequence[Sequence[Receive]]],
        device: torch.device,
    ) -> torch.Tensor:
        sizes = [_message_bytes(m) for messages in by_peer.values() for m in messages]
        return torch.empty(max(sizes, default=0), dtype=torch.uint8, device=device)


Step = tuple[int, Sequence[Send] | None, int, Sequence[Receive] | None]


def _steps(hop: Hop, rank: int, size: int) -> Iterator[Step]:
    """(to, message or None, from, message or None), in the order that all ranks keep.

    On 4 ranks that all talk to each other, rank 1 sends to 2, 3, 0 and receives from 0, 3, 2.
    """
    shifts = {(peer - rank) % size for peer in hop.sends}
    shifts |= {(rank - peer) % size for peer in hop.receives}
    for shift in sorted(shifts):
        to, frm = (rank + shift) % size, (rank - shift) % size
        for sends, receives in zip_longest(hop.sends.get(to, ()), hop.receives.get(frm, ())):
            yield to, sends, frm, receives
