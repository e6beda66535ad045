"""What a rank has already: from its source memory into its target memory."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch

from verl_hpc.layout.fragments import Fragment
from verl_hpc.layout.moves import Copy
from verl_hpc.transfer.checksum import Digest
from verl_hpc.transfer.memory import Memory, window
from verl_hpc.transfer.reads import PIECE_BYTES
from verl_hpc.transfer.sums import Sums


@dataclass(frozen=True)
class _Bound:
    fragment: Fragment
    copies: Sequence[tuple[torch.Tensor, torch.Tensor]]
    """(to, from)"""
    summed: Sequence[tuple[torch.Tensor, torch.Tensor]]
    """The same, of which a checksum is wanted."""


class OwnCopies:
    """Copies bound to memory.

    Args:
        copies: of this rank.
        memory: what is read and filled.
        shown: fragments that neighbours read; they are summed here, piece by piece, while a core's
            cache has them.
    """

    def __init__(self, copies: Sequence[Copy], memory: Memory, shown: Collection[Fragment]) -> None:
        self.num_bytes = sum(copy.fragment.num_bytes for copy in copies)
        self._copies = [_bound(copy, memory, copy.fragment in shown) for copy in copies]

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


def _bound(copy: Copy, memory: Memory, shown: bool) -> _Bound:
    held = window(memory.source, copy.source, copy.fragment)
    first, *others = memory.windows(copy.targets, copy.fragment)
    if not shown or not held.is_contiguous() or held.dim() == 0:
        return _Bound(copy.fragment, [(to, held) for to in (first, *others)], ())
    at_a_time = max(PIECE_BYTES * len(held) // copy.fragment.num_bytes, 1)
    pieces = zip(first.split(at_a_time), held.split(at_a_time), strict=True)
    return _Bound(copy.fragment, [(to, held) for to in others], list(pieces))
