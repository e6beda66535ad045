"""Reads from the memory of other ranks of the same host, in place of messages.

Pieces are small enough to be in a core's cache still when they are summed, and when they are copied
to targets whose layout differs from the one that travels.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from verl_hpc.layout.fragments import Fragment
from verl_hpc.layout.moves import Receive, Step
from verl_hpc.transfer.checksum import Digest
from verl_hpc.transfer.memory import PIECE_BYTES, Memory
from verl_hpc.transfer.message import TransferStats, exchange
from verl_hpc.transfer.process_memory import read_memory
from verl_hpc.transfer.sums import Sums, column


@dataclass(frozen=True)
class _Piece:
    """Rows of a fragment that are read together."""

    runs: np.ndarray
    """(n, 2) int64: bytes from the start of the sender's window, and how many follow each other."""
    into: torch.Tensor
    """Rows of the fragment: in the first target itself, or in scratch memory to copy from."""
    copies: Sequence[torch.Tensor]
    """Rows of the other targets, or of all targets if `into` is scratch memory."""


@dataclass(frozen=True)
class _Read:
    fragment: Fragment
    pieces: Sequence[_Piece]
    in_place: bool


class Reads:
    """Reads of one rank in a hop, bound to memory, and the windows that others read from it.

    Args:
        hop: the rank's steps.
        memory: what is read and filled.
        neighbours: process numbers of the ranks that read each other's memory; steps of others are
            left out.
    """

    def __init__(self, hop: Sequence[Step], memory: Memory, neighbours: Mapping[int, int]) -> None:
        self._memory, self._processes = memory, neighbours
        self._scratch = torch.empty(0, dtype=torch.uint8)
        self._shown: dict[int, list[tuple[Fragment, torch.Tensor]]] = defaultdict(list)
        self._reads: dict[int, list[_Read]] = defaultdict(list)
        for step in hop:
            if step.to in neighbours:
                for item in step.sends:
                    window, travels = memory.read(item), memory.dtype(item.fragment)
                    assert window.dtype == travels, "nothing is converted on the way"
                    self._shown[step.to].append((item.fragment, window))
            if step.frm in neighbours:
                self._reads[step.frm] += map(self._bound, step.receives)

    @property
    def scratch_bytes(self) -> int:
        """Memory for fragments that cannot be read in place."""
        return self._scratch.numel()

    @property
    def shown(self) -> set[Fragment]:
        """Fragments that neighbours read."""
        return {fragment for windows in self._shown.values() for fragment, _ in windows}

    def run(self, sums: Sums | None, stats: TransferStats) -> None:
        """Read everything, and wait until all that read from this rank have done so."""
        announced = {
            frm: torch.empty(2, len(r), dtype=torch.int64) for frm, r in self._reads.items()
        }
        exchange({to: self._where(to, sums) for to in self._shown}, announced)
        for frm, reads in self._reads.items():
            addresses, expected = announced[frm]
            for read, address in zip(reads, addresses.tolist(), strict=True):
                self._read(read, frm, address, sums)
                stats.received_bytes[frm] += read.fragment.num_bytes
                stats.in_place_bytes += read.in_place * read.fragment.num_bytes
            if sums is not None:
                sums.told(frm, expected)
        for to, windows in self._shown.items():
            stats.sent_bytes[to] += sum(fragment.num_bytes for fragment, _ in windows)
        exchange(_notes(self._reads), _notes(self._shown))

    def _where(self, to: int, sums: Sums | None) -> torch.Tensor:
        """(2, n) int64: the address of each fragment that a rank reads, and its checksum."""
        windows = self._shown[to]
        addresses = torch.tensor([window.data_ptr() for _, window in windows])
        if sums is None:
            return torch.stack([addresses, torch.zeros_like(addresses)])
        return torch.stack([addresses, column([sums.of(f, window) for f, window in windows])])

    def _read(self, read: _Read, frm: int, address: int, sums: Sums | None) -> None:
        digest = Digest()
        for piece in read.pieces:
            read_memory(self._processes[frm], address, piece.runs, piece.into)
            if sums is not None:
                digest.add(piece.into)
            for target in piece.copies:
                target.copy_(piece.into)
        if sums is not None:
            sums.received(frm, (read.fragment,), digest.found())

    def _bound(self, item: Receive) -> _Read:
        fragment = item.fragment
        first, *others = map(torch.atleast_1d, self._memory.windows(item.targets, fragment))
        in_place = first.is_contiguous()
        pieces = []
        strides = [item.sent.strides[dim] for dim in fragment.order] or (1,)
        for rows, runs in _pieces(first.shape, strides, first.element_size()):
            into = first[rows] if in_place else self._scratch_like(first[rows])
            copies = [window[rows] for window in ((first, *others), others)[in_place]]
            pieces.append(_Piece(runs, into, copies))
        return _Read(fragment, pieces, in_place)

    def _scratch_like(self, rows: torch.Tensor) -> torch.Tensor:
        num_bytes = rows.numel() * rows.element_size()
        if num_bytes > self._scratch.numel():
            self._scratch = torch.empty(num_bytes, dtype=torch.uint8)
        return self._scratch[:num_bytes].view(rows.dtype).view(rows.shape)


def _notes(peers: Iterable[int]) -> dict[int, torch.Tensor]:
    """Make a message without content for each peer, as a signal."""
    return {peer: torch.zeros(1) for peer in peers}


def _pieces(
    shape: Sequence[int], strides: Sequence[int], item_bytes: int
) -> Iterator[tuple[slice, np.ndarray]]:
    """Rows of a window that are read together, and where they lie, in bytes from its start.

    Rows of 8 bytes, 32 bytes from one to the next, 3 of them at a time::

        rows 0-3   (0, 8)  (32, 8)  (64, 8)
        rows 3-4   (96, 8)
    """
    offsets, run = _runs(shape[1:], strides[1:], item_bytes)
    step = strides[0] * item_bytes
    follow = len(offsets) == 1 and run == step
    at_a_time = max(PIECE_BYTES // (len(offsets) * run), 1)
    for first in range(0, shape[0], at_a_time):
        last = min(first + at_a_time, shape[0])
        if follow:
            yield slice(first, last), np.array([[first * step, (last - first) * run]])
        else:
            starts = (np.arange(first, last)[:, None] * step + offsets).reshape(-1)
            yield slice(first, last), np.stack([starts, np.full_like(starts, run)], axis=1)


def _runs(shape: Sequence[int], strides: Sequence[int], item_bytes: int) -> tuple[np.ndarray, int]:
    """Return the offsets of contiguous runs of an array's elements, and the length of a run, in
    bytes."""
    dims, run = list(zip(shape, strides, strict=True)), item_bytes
    while dims and (dims[-1][0] == 1 or dims[-1][1] * item_bytes == run):
        run *= dims.pop()[0]
    offsets: np.ndarray = np.zeros(1, dtype=np.int64)
    for size, stride in dims:
        offsets = (offsets[:, None] + np.arange(size) * stride * item_bytes).reshape(-1)
    return offsets, run
