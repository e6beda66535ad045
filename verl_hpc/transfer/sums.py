"""Checksums of the messages of a run, compared once, when all have arrived."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TypeAlias

import torch

from verl_hpc.errors import TransferError
from verl_hpc.layout.fragments import Fragment
from verl_hpc.transfer.checksum import checksum
from verl_hpc.transfer.message import exchange

Sum: TypeAlias = int | torch.Tensor
"""A checksum: an int64 scalar on the device, read without synchronisation, or a number for host
memory."""


def column(sums: Sequence[Sum]) -> torch.Tensor:
    """Stack sums into a tensor, (n,) int64."""
    if isinstance(sums[0], int):
        return torch.tensor(sums, dtype=torch.int64)
    return torch.stack(list(map(torch.as_tensor, sums)))


def _sum_of(data: torch.Tensor) -> Sum:
    digest = checksum(data)
    return int(digest) if digest.device.type == "cpu" else digest


class Sums:
    """Checksums of what one rank sent and received, by peer, in the order of the messages.

    The bytes of a fragment that travels alone are the same on all its ways, so it is summed once:
    by a rank that sends it to several, and by one that passes on what it received.
    """

    def __init__(self, rank: int, nodes: Sequence[str]) -> None:
        self._rank, self._nodes = rank, nodes
        self._of_fragment: dict[Fragment, Sum] = {}
        self._sent: dict[int, list[Sum]] = defaultdict(list)
        self._received: dict[int, list[Sum]] = defaultdict(list)
        self._told: dict[int, list[torch.Tensor]] = defaultdict(list)
        self._messages: dict[int, list[Sequence[Fragment]]] = defaultdict(list)

    def knows(self, fragments: Sequence[Fragment]) -> bool:
        """Whether the checksum of a message of these fragments is already known."""
        return len(fragments) == 1 and fragments[0] in self._of_fragment

    def sent(self, to: int, fragments: Sequence[Fragment], digest: Sum | None) -> None:
        """Note the checksum of what is sent; None where it is known."""
        if digest is None:
            digest = self._of_fragment[fragments[0]]
        self._know_alone(fragments, digest)
        self._sent[to].append(digest)

    def received(self, frm: int, fragments: Sequence[Fragment], digest: Sum) -> None:
        """Note the checksum of what has arrived."""
        self._know_alone(fragments, digest)
        self._received[frm].append(digest)
        self._messages[frm].append(fragments)

    def told(self, frm: int, expected: torch.Tensor) -> None:
        """Note checksums that the sender has already announced for what arrived, (n,) int64, so
        that they are not requested."""
        self._told[frm].append(expected)

    def know(self, fragment: Fragment, digest: Sum) -> None:
        """Note the checksum of a fragment."""
        self._of_fragment[fragment] = digest

    def _know_alone(self, fragments: Sequence[Fragment], digest: Sum) -> None:
        if len(fragments) == 1:
            self.know(fragments[0], digest)

    def of(self, fragment: Fragment, data: torch.Tensor) -> Sum:
        """The checksum of a fragment that is read by others."""
        if fragment not in self._of_fragment:
            self.know(fragment, _sum_of(data))
        return self._of_fragment[fragment]

    def compare(self) -> None:
        """Give every receiver the sums of what it was sent; every rank that sent or received calls
        it.

        Raises:
            TransferError: a message is not what was sent.
        """
        received = {peer: column(sums) for peer, sums in self._received.items()}
        expected = {peer: torch.empty_like(sums) for peer, sums in received.items()}
        expected |= {peer: torch.cat(sums) for peer, sums in self._told.items()}
        exchange(
            {peer: column(sums) for peer, sums in self._sent.items()},
            {peer: sums for peer, sums in expected.items() if peer not in self._told},
        )
        if not expected:
            return
        wrong = {peer: received[peer] != sums for peer, sums in expected.items()}
        if bool(torch.cat(list(wrong.values())).any()):
            self._complain({peer: flags.tolist() for peer, flags in wrong.items()})

    def _complain(self, wrong: dict[int, list[bool]]) -> None:
        sender, flags = next((peer, flags) for peer, flags in wrong.items() if any(flags))
        bad = next(m for m, is_wrong in zip(self._messages[sender], flags, strict=True) if is_wrong)
        first, *rest = bad
        others = f" and {len(rest)} more" if rest else ""
        raise TransferError(
            f"rank {self._rank}: {sum(flags)} of {len(flags)} messages from rank {sender} differ "
            f"from what was sent, first the one with {first.tensor} {first.box.start}.."
            f"{first.box.stop}{others}; {self._suspects(sender)} corrupted data, or the network did"
        )

    def _suspects(self, sender: int) -> str:
        if not self._nodes:
            return "a device"
        names = ",".join(sorted({self._nodes[self._rank], self._nodes[sender]}))
        return f"resume with --exclude={names}: a device there"
