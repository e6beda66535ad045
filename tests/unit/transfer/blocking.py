"""Sends and receives in the order in which NCCL carries them out: a slow, obvious oracle.

NCCL keeps nothing of a message: a send ends together with the receive that takes it. What a rank
launches on a communicator runs one after another, in the order of its launches; the sends and
receives of one launch (`batch_isend_irecv`) run together, and it ends when all of them have ended.
A schedule that needs a message to lie somewhere between its two ends therefore never ends. Torch
runs some launches beside each other (those of single messages to different ranks), which makes
nothing wait that does not wait here.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

WORLD = "world"

Messages: TypeAlias = Sequence[tuple[int, int]]
"""(the other rank, bytes) of each message."""


@dataclass(frozen=True)
class Launch:
    """Sends and receives that run together."""

    sends: Messages = ()
    receives: Messages = ()
    communicator: Hashable = WORLD


@dataclass(frozen=True)
class Wait:
    """The rank goes on when its launch of this number has ended; None is all of them so far."""

    number: int | None = None


Program: TypeAlias = Sequence[Launch | Wait]
"""What one rank does, in order."""


def faults(programs: Mapping[int, Program]) -> list[str]:
    """Run the programs of all ranks, and name what goes wrong: messages of which the two ends know
    different sizes, and launches that never end."""
    ranks = {number: _Rank(program) for number, program in programs.items()}
    problems: list[str] = []
    goes_on = True
    while goes_on:
        goes_on = False
        for number, rank in ranks.items():
            goes_on |= rank.goes_on()
            for launch in rank.running():
                for to, sizes in launch.sends.items():
                    goes_on |= _carry(number, to, sizes, ranks, launch.communicator, problems)
    return problems + [
        f"rank {number} waits in its launch {launch.number}: {launch}"
        for number, rank in ranks.items()
        for launch in rank.running()
    ]


def _carry(
    sender: int,
    receiver: int,
    sizes: deque[int],
    ranks: Mapping[int, _Rank],
    communicator: Hashable,
    problems: list[str],
) -> bool:
    """Carry messages whose two ends are both there; whether there was one."""
    carried = False
    for launch in ranks[receiver].running():
        wanted = launch.receives.get(sender, deque())
        while launch.communicator == communicator and sizes and wanted:
            sent, expected = sizes.popleft(), wanted.popleft()
            carried = True
            if sent != expected:
                problems.append(
                    f"rank {sender} sends {sent} bytes, and rank {receiver} expects {expected}"
                )
    return carried


class _Running:
    """What is left of a launch."""

    def __init__(self, number: int, launch: Launch) -> None:
        self.number, self.communicator = number, launch.communicator
        self.sends, self.receives = _by_rank(launch.sends), _by_rank(launch.receives)

    @property
    def has_ended(self) -> bool:
        return not any(self.sends.values()) and not any(self.receives.values())

    def __str__(self) -> str:
        to = [rank for rank, sizes in self.sends.items() if sizes]
        frm = [rank for rank, sizes in self.receives.items() if sizes]
        return f"sends to {to}, receives from {frm}"


def _by_rank(messages: Messages) -> dict[int, deque[int]]:
    by_rank: dict[int, deque[int]] = defaultdict(deque)
    for rank, size in messages:
        by_rank[rank].append(size)
    return dict(by_rank)


class _Rank:
    def __init__(self, program: Program) -> None:
        self._program, self._at = program, 0
        self._launched = 0
        self._queues: dict[Hashable, deque[_Running]] = defaultdict(deque)

    def running(self) -> Iterator[_Running]:
        """Yield the first launch on every communicator that has not ended."""
        for queue in self._queues.values():
            if queue:
                yield queue[0]

    def goes_on(self) -> bool:
        """Drop launches that have ended, and do what comes next; whether there was any of it."""
        before = self._at, sum(map(len, self._queues.values()))
        for queue in self._queues.values():
            while queue and queue[0].has_ended:
                queue.popleft()
        while self._at < len(self._program) and self._may(step := self._program[self._at]):
            self._at += 1
            if isinstance(step, Launch):
                self._queues[step.communicator].append(_Running(self._launched, step))
                self._launched += 1
        return before != (self._at, sum(map(len, self._queues.values())))

    def _may(self, step: Launch | Wait) -> bool:
        if isinstance(step, Launch):
            return True
        under_way = [launch.number for queue in self._queues.values() for launch in queue]
        return not under_way if step.number is None else step.number not in under_way
