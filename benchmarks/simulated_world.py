"""One rank of a world whose other ranks only say what they are told to; everything is counted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from verl_hpc.runtime.channel import Messages, Pending
from verl_hpc.runtime.collectives import ENVELOPE, HEAD, Peers
from verl_hpc.runtime.control import Control


@dataclass
class Traffic:
    """Of one rank."""

    messages_sent: int = 0
    bytes_sent: int = 0
    bytes_received: int = 0


@dataclass
class _Silent:
    """A channel that carries nothing."""

    rank: int
    size: int

    def split(self, group: int) -> _Silent:
        raise NotImplementedError

    def exchange(self, sends: Messages, receives: Messages) -> Pending:
        raise NotImplementedError


class SimulatedControl(Control):
    """The control plane of one rank of many: its own collectives, with messages of nobody.

    In collectives that combine, all ranks say the same. Bytes that are exchanged are zeros.
    """

    def __init__(self, rank: int, size: int) -> None:
        super().__init__(_Silent(rank, size))
        self.traffic = Traffic()
        self.said: list[Sequence[bytes]] = []
        """What all ranks say in the all-gathers and gathers to come."""

    @contextmanager
    def _meeting(self, name: str) -> Iterator[Peers]:
        said = self.said.pop(0) if name.startswith(("allgather", "gather")) else None
        if said is not None:
            assert len(said) == self.size
        transport = _Transport(self.rank, said, self.traffic)
        yield Peers(self.rank, self.size, transport.exchange)


class _Transport:
    """Messages of one collective."""

    def __init__(self, rank: int, said: Sequence[bytes] | None, traffic: Traffic) -> None:
        self._rank, self._said, self._traffic = rank, said, traffic
        self._rest = b""
        """Of what did not fit into an envelope."""

    def exchange(self, sends: Messages, receives: Messages) -> None:
        traffic = self._traffic
        traffic.messages_sent += len(sends)
        traffic.bytes_sent += sum(data.nbytes for _, data in sends)
        traffic.bytes_received += sum(data.nbytes for _, data in receives)
        for source, target in receives:
            if self._said is None:
                same = len(sends) == 1 and sends[0][1].size == target.size
                target[:] = sends[0][1] if same else 0
            elif self._rest:
                target[:] = np.frombuffer(self._rest, np.uint8)
                self._rest = b""
            else:
                message = _blocks(self._said, self._rank, source)
                target[:HEAD].view(np.int64)[0] = len(message)
                inline = np.frombuffer(message[: ENVELOPE - HEAD], np.uint8)
                target[HEAD : HEAD + inline.size] = inline
                self._rest = message if len(message) > ENVELOPE - HEAD else b""


def _blocks(said: Sequence[bytes], rank: int, source: int) -> bytes:
    """What a rank is told by another in `collectives.allgather`, or by a child in `gather`."""
    distance = (source - rank) % len(said)
    parts = [said[(source + i) % len(said)] for i in range(min(distance, len(said) - distance))]
    return np.array([len(part) for part in parts], np.uint32).tobytes() + b"".join(parts)
