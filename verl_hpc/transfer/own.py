"""Copies of fragments that a rank already holds, from its source to its target memory."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch

from verl_hpc.layout.fragments import Fragment
from verl_hpc.layout.moves import Copy
from verl_hpc.transfer.checksum import Digest
from verl_hpc.transfer.memory import Memory, in_pieces, window
from verl_hpc.transfer.sums import Sums


@dataclass(frozen=True)
class _Bound:
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
        self._copies = [_bound(copy, memory, copy.fragment in summed) for copy in copies]

    def run(self, sums: Sums | None) -> None:
        """Copy everything."""
        for copy in self._copies:
            digest = Digest()
            for to, frm in copy.summed:
                to.copy_(frm)
                if sums is not None:
                    digest.add(frm)
            if sums is not None and copy.summed:
                sums.know(copy.fragment, digest.found())
            for to, frm in copy.copies:
                to.copy_(frm)


def _bound(copy: Copy, memory: Memory, summed: bool) -> _Bound:
    held = window(memory.source, copy.source, copy.fragment)
    first, *others = memory.windows(copy.targets, copy.fragment)
    # On a device the message's own sum is as quick; other dtypes travel as other bytes.
    here = memory.device.type == "cpu" and memory.in_place(held, copy.fragment)
    if not (summed and here):
        return _Bound(copy.fragment, [(to, held) for to in (first, *others)], ())
    return _Bound(copy.fragment, [(to, held) for to in others], list(in_pieces(first, held)))
