"""Ranks as threads of one process, without a launcher or MPI."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from verl_hpc.runtime.channel import Channel, Messages, Pending, wait
from verl_hpc.runtime.collectives import Peers, allgather
from verl_hpc.runtime.control import Control


class AnotherRankFailedError(Exception):
    """Raised by a rank that waits for others, of which one has failed."""


def on_ranks(
    size: int,
    work: Callable[[Control], Any],
    channel: Callable[[int], Channel] | None = None,
    timeout_s: float = 20.0,
) -> list[Any]:
    """What `work(control)` gives on each rank, each a thread.

    Raises what the lowest of the ranks that failed has raised.

    Args:
        channel: `channel(rank)` makes that rank's; a `ThreadChannel` by default.
        timeout_s: of every wait.
    """
    shared = Shared()

    def rank(number: int) -> Any:
        try:
            carrier = channel(number) if channel else ThreadChannel(shared, (), number, size)
            control = (
                Control(carrier, timeout_s)
                if channel
                else CheckedControl(shared, carrier, timeout_s)
            )
            return work(control)
        except Exception:
            shared.failed = True
            raise

    results = in_threads(size, rank)
    for result in results:
        if isinstance(result, Exception) and not isinstance(result, AnotherRankFailedError):
            raise result
    return results


@dataclass
class Shared:
    """What all ranks share."""

    sent: dict[tuple[Any, ...], deque[Any]] = field(default_factory=dict)
    """Messages under way by channel, sender and receiver."""
    started: dict[tuple[Any, ...], tuple[int, str]] = field(default_factory=dict)
    """Who has started a collective first, and its name, by set of ranks and number."""
    failed: bool = False
    """Whether a rank has failed."""


class CheckedControl(Control):
    """Fails where ranks start different collectives.

    Args:
        shared: by all ranks.
    """

    def __init__(self, shared: Shared, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._shared, self._num_splits = shared, 0

    def split(self, group: int) -> Control:
        part = super().split(group)
        return CheckedControl(self._shared, part._channel, self._timeout_s, self._world, part.ranks)

    @contextmanager
    def _meeting(self, name: str) -> Iterator[Peers]:
        with super()._meeting(name) as peers:
            key = (*self._channel.name, self.num_waits)
            first, known = self._shared.started.setdefault(key, (self.rank, name))
            assert known == name, f"rank {first} starts {known}, rank {self.rank} starts {name}"
            yield peers


class ThreadChannel:
    """A channel of ranks that are threads.

    Args:
        name: tells it from other channels that share `shared`.
    """

    def __init__(self, shared: Shared, name: tuple[Any, ...], rank: int, size: int) -> None:
        self.rank, self.size, self.name = rank, size, name
        self._shared, self._splits = shared, 0

    def split(self, group: int) -> ThreadChannel:
        peers = Peers(self.rank, self.size, lambda sent, got: wait(self.exchange(sent, got)))
        groups = allgather(peers, np.array([group]).view(np.uint8))[0].view(np.int64).tolist()
        mates = [rank for rank, other in enumerate(groups) if other == group]
        self._splits += 1
        name = (*self.name, self._splits, group)
        return ThreadChannel(self._shared, name, mates.index(self.rank), len(mates))

    def exchange(self, sends: Messages, receives: Messages) -> Pending:
        for rank, data in sends:
            self._queue(self.rank, rank).append(data.tobytes())
        left = list(receives)

        def is_done() -> bool:
            while left and self._queue(left[0][0], self.rank):
                rank, target = left.pop(0)
                message = self._queue(rank, self.rank).popleft()
                target.view(np.uint8)[:] = np.frombuffer(message, np.uint8)
            if left and self._shared.failed:
                raise AnotherRankFailedError
            return not left

        return is_done

    def _queue(self, source: int, target: int) -> deque[Any]:
        return self._shared.sent.setdefault((*self.name, source, target), deque())


def in_threads(size: int, work: Callable[[int], Any]) -> list[Any]:
    """What `work(rank)` gives or raises on each rank, each a thread."""
    results: list[Any] = [None] * size

    def rank(number: int) -> None:
        try:
            results[number] = work(number)
        except Exception as error:
            results[number] = error

    threads = [threading.Thread(target=rank, args=(number,), daemon=True) for number in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
        assert not thread.is_alive(), "a rank hangs"
    return results
