"""Ranks as threads of one process, without a launcher or MPI."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from verl_hpc.runtime.channel import Pending, wait
from verl_hpc.runtime.control import Control

Given = dict[tuple[Any, ...], dict[int, Any]]
"""By collective and rank."""


def on_ranks(size: int, work: Callable[[Control], Any]) -> list[Any]:
    """What `work(control)` gives on each rank, each a thread; raises what one of them raises."""
    given: Given = {}
    return checked(
        in_threads(size, lambda rank: work(Control(ThreadChannel(given, (), rank, size), 20)))
    )


def checked(results: list[Any]) -> list[Any]:
    """The same, if no rank has raised."""
    for result in results:
        if isinstance(result, Exception):
            raise result
    return results


class ThreadChannel:
    """A channel of ranks that are threads, which all see what each has given.

    Args:
        name: tells it from other channels that share `given`.
    """

    def __init__(self, given: Given, name: tuple[Any, ...], rank: int, size: int) -> None:
        self.rank, self.size = rank, size
        self._given, self._name, self._started = given, name, 0

    def split(self, group: int) -> ThreadChannel:
        groups = np.empty(self.size, dtype=np.int64)
        wait(self.allgather(np.array([group]), groups))
        mates = np.flatnonzero(groups == group)
        name = (*self._name, self._started, group)
        return ThreadChannel(self._given, name, mates.tolist().index(self.rank), len(mates))

    def barrier(self) -> Pending:
        return self._start(None, range(self.size), lambda _: None)

    def allgather(self, value: Any, values: Any) -> Pending:
        return self._gather(value, values, range(self.size))

    def allgatherv(self, data: Any, gathered: Any, sizes: Any) -> Pending:
        return self._gather(data, gathered, range(self.size))

    def gatherv(self, data: Any, gathered: Any, sizes: Any, root: int) -> Pending:
        return self._gather(data, gathered, range(self.size) if self.rank == root else ())

    def broadcast(self, data: Any, root: int) -> Pending:
        return self._gather(data, data, [root])

    def _gather(self, data: Any, target: Any, ranks: Sequence[int]) -> Pending:
        def take(given: dict[int, Any]) -> None:
            if ranks:
                np.concatenate([given[rank] for rank in ranks], out=target)

        return self._start(data.copy(), ranks, take)

    def _start(self, mine: Any, ranks: Sequence[int], take: Callable[..., None]) -> Pending:
        """Over when these ranks have started it, too."""
        given = self._given.setdefault((*self._name, self._started), {})
        self._started += 1
        given[self.rank] = mine

        def is_done() -> bool:
            if any(rank not in given for rank in ranks):
                return False
            take(given)
            return True

        return is_done


def in_threads(size: int, work: Callable[[int], Any]) -> list[Any]:
    """What `work(rank)` gives or raises on each rank, each a thread."""
    results: list[Any] = [None] * size

    def rank(number: int) -> None:
        try:
            results[number] = work(number)
        except Exception as error:
            results[number] = error

    threads = [threading.Thread(target=rank, args=(number,)) for number in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
        assert not thread.is_alive(), "a rank hangs"
    return results
