"""Checksums of the messages of a run, compared once, when all have arrived."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import torch
import torch.distributed as dist

from verl_hpc.errors import TransferError
from verl_hpc.layout.fragments import Fragment
from verl_hpc.transfer.checksum import checksum
from verl_hpc.transfer.message import Message


class Sums:
    """Of what one rank sent and received, by peer, in the order of the messages.

    The bytes of a fragment that travels alone are the same on all its ways, so it is summed once:
    by a rank that sends it to several, and by one that passes on what it received.
    """

    def __init__(self, rank: int, nodes: Sequence[str]) -> None:
        self._rank, self._nodes = rank, nodes
        self._of_fragment: dict[Fragment, torch.Tensor] = {}
        self._sent: dict[int, list[torch.Tensor]] = defaultdict(list)
        self._received: dict[int, list[torch.Tensor]] = defaultdict(list)
        self._messages: dict[int, list[Message]] = defaultdict(list)

    def sent(self, message: Message) -> None:
        """Note a message's bytes before it leaves."""
        self._sent[message.peer].append(self._known(message))

    def received(self, message: Message) -> None:
        """Note a message's bytes when it has arrived."""
        found = checksum(message.data)
        if len(message.fragments) == 1:
            self._of_fragment[message.fragments[0]] = found
        self._received[message.peer].append(found)
        self._messages[message.peer].append(message)

    def _known(self, message: Message) -> torch.Tensor:
        if len(message.fragments) > 1:
            return checksum(message.data)
        (fragment,) = message.fragments
        if fragment not in self._of_fragment:
            self._of_fragment[fragment] = checksum(message.data)
        return self._of_fragment[fragment]

    def compare(self) -> None:
        """Give every receiver the sums of what it was sent; every rank that sent or received calls
        it.

        Raises:
            TransferError: a message is not what was sent.
        """
        expected = {peer: torch.empty_like(torch.stack(s)) for peer, s in self._received.items()}
        operations = [
            dist.P2POp(dist.isend, torch.stack(sums), peer) for peer, sums in self._sent.items()
        ]
        operations += [dist.P2POp(dist.irecv, sums, peer) for peer, sums in expected.items()]
        for request in dist.batch_isend_irecv(operations) if operations else ():
            request.wait()
        if not expected:
            return
        wrong = {peer: torch.stack(self._received[peer]) != e for peer, e in expected.items()}
        if bool(torch.cat(list(wrong.values())).any()):
            self._complain({peer: flags.tolist() for peer, flags in wrong.items()})

    def _complain(self, wrong: dict[int, list[bool]]) -> None:
        sender, flags = next((peer, flags) for peer, flags in wrong.items() if any(flags))
        bad = next(m for m, is_wrong in zip(self._messages[sender], flags, strict=True) if is_wrong)
        first, *rest = bad.fragments
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
