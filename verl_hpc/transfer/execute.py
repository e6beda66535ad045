"""Carries out one rank's part of a plan, into the target's own memory."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from verl_hpc.layout.fragments import Fragment
from verl_hpc.layout.moves import Copy, RankMoves, moves_of
from verl_hpc.layout.planner import DEFAULT_ROUNDS, Plan
from verl_hpc.transfer.checksum import Digest
from verl_hpc.transfer.exchange import Buckets, Exchange
from verl_hpc.transfer.files import Reader
from verl_hpc.transfer.memory import Memory, in_pieces, window
from verl_hpc.transfer.message import TransferStats
from verl_hpc.transfer.sums import Sums


def _call(work: Callable[[], None]) -> None:
    work()


@dataclass(frozen=True)
class _OwnCopy:
    fragment: Fragment
    copies: Sequence[tuple[torch.Tensor, torch.Tensor]]
    """(to, from)"""
    summed: Sequence[tuple[torch.Tensor, torch.Tensor]]
    """Pairs (to, from) of which a checksum is wanted."""


class OwnCopies:
    """Copies bound to memory.

    Args:
        copies: of this rank.
        memory: what is read and filled.
        summed: fragments that others get, whose checksum is wanted; it is taken here, piece by
            piece, while a core's cache has them.
    """

    def __init__(
        self, copies: Sequence[Copy], memory: Memory, summed: Collection[Fragment]
    ) -> None:
        self.num_bytes = sum(copy.fragment.num_bytes for copy in copies)
        self._copies = [_own_copy(copy, memory, copy.fragment in summed) for copy in copies]

    def run(self, sums: Sums | None) -> None:
        """Copy everything."""
        for copy in self._copies:
            digest = Digest() if sums is not None and copy.summed else None
            for to, frm in copy.summed:
                to.copy_(frm)
                if digest is not None:
                    digest.add(frm)
            if sums is not None and digest is not None:
                sums.know(copy.fragment, digest.found())
            for to, frm in copy.copies:
                to.copy_(frm)


def _own_copy(copy: Copy, memory: Memory, summed: bool) -> _OwnCopy:
    held = window(memory.source, copy.source, copy.fragment)
    first, *others = memory.windows(copy.targets, copy.fragment)
    # On a device the message's own sum is as quick; other dtypes travel as other bytes.
    here = memory.device.type == "cpu" and memory.in_place(held, copy.fragment)
    if not (summed and here):
        return _OwnCopy(copy.fragment, [(to, held) for to in (first, *others)], ())
    return _OwnCopy(copy.fragment, [(to, held) for to in others], list(in_pieces(first, held)))


@dataclass(frozen=True)
class _Bound:
    """A rank's moves and the memory they were bound to."""

    memory: Memory
    copies: OwnCopies
    exchange: Exchange


class Transfer:
    """A plan bound to one rank's memory; run it as often as the source changes.

    Every rank that the plan names must run it at the same time. Tensors are bound by local name
    and must be contiguous; their memory may change between runs, their size may not. References to
    those of the last run are kept until the next one, and a bucket for each round in flight, in
    each direction, from run to run.

    Args:
        plan: the whole plan, the same on every rank.
        rank: this rank; holders of the plan are ranks of the default process group.
        reader: reads the plan's files, if it has any; every rank has one then.
        verify: compare a checksum of every received message with the sender's.
        nodes: name of each rank's node, for the message where a checksum differs.
        rounds: number of rounds in flight at a time.
        neighbours: process numbers of the other ranks of this node, where they may read each
            other's memory (`process_memory.readable_neighbours`) and nothing changes its type on
            the way; the others are sent messages.
        buckets: of another transfer that never runs at the same time.
    """

    def __init__(
        self,
        plan: Plan,
        rank: int,
        reader: Reader | None = None,
        verify: bool = True,
        nodes: Sequence[str] = (),
        rounds: int = DEFAULT_ROUNDS,
        neighbours: Mapping[int, int] | None = None,
        buckets: Buckets | None = None,
    ) -> None:
        self.moves: RankMoves = moves_of(plan, rank)
        self._meets = any(self.moves.hops)  # another rank, in some step
        self.reader = reader
        assert reader is not None or not self.moves.reads, "the plan has files to read"
        self.verify = verify
        self.nodes = nodes
        self._rounds, self._neighbours = rounds, neighbours or {}
        self._buckets = buckets or Buckets()
        self._bound: _Bound | None = None

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
            together: runs the reading of files, which may fail on one rank, such that all ranks
                fail then instead of waiting for it (`Control.together`).

        Raises:
            TransferError: a received message's checksum differs from the sender's. It is found
                when everything has arrived: the target is then of no use.
        """
        start = time.perf_counter()
        memory, stats = Memory(dict(source), dict(target), dtypes), TransferStats()
        sums = Sums(self.moves.rank, self.nodes) if self.verify and self._meets else None
        with torch.no_grad():
            bound = self._bind(memory)
            bound.copies.run(sums)
            stats.copied_bytes = bound.copies.num_bytes
            if self.reader is not None:
                together(partial(self._read, self.reader, memory, stats))
            if self._meets:
                bound.exchange.run(sums, stats)
            if sums is not None:
                sums.compare()
        if memory.device.type == "cuda":
            torch.cuda.synchronize(memory.device)
        stats.seconds = time.perf_counter() - start
        return stats

    def forget(self) -> None:
        """Drop references to the tensors of the last run, which may then be freed."""
        self._bound = None

    def _bind(self, memory: Memory) -> _Bound:
        """Bind the moves to memory; kept for as long as the memory stays the same."""
        if self._bound is None or not self._bound.memory.is_that_of(memory):
            exchange = Exchange(
                self.moves.hops, memory, self._buckets, self._rounds, self._neighbours
            )
            copies = OwnCopies(self.moves.copies, memory, exchange.summed_alone)
            self._bound = _Bound(memory, copies, exchange)
        return self._bound

    def _read(self, reader: Reader, memory: Memory, stats: TransferStats) -> None:
        for read in self.moves.reads:
            data = reader.read(read.file, read.dataset, read.box)
            for to in memory.windows(read.targets, read.fragment):
                to.copy_(data)
            stats.read_bytes += read.fragment.num_bytes
