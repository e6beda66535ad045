"""The rival of `benchmarks/micro_batches.py`: largest differencing the way verl has it
(verl/utils/seqlen_balancing.py, get_seqlen_balanced_partitions and rearrange_micro_batches).

Every length begins as a state of k sets, all but one of them empty, and every merge sorts k sets.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence


class _Set:
    # verl has none: this is in its favour.
    __slots__ = ("items", "total")

    def __init__(self) -> None:
        self.total = 0
        self.items: list[tuple[int, int]] = []

    def add(self, index: int, length: int) -> None:
        self.items.append((index, length))
        self.total += length

    def merge(self, other: _Set) -> None:
        for index, length in other.items:
            self.add(index, length)

    def __lt__(self, other: _Set) -> bool:
        if self.total != other.total:
            return self.total < other.total
        if len(self.items) != len(other.items):
            return len(self.items) < len(other.items)
        return self.items < other.items


class _State:
    def __init__(self, index: int, length: int, k: int) -> None:
        self.sets = [_Set() for _ in range(k)]
        self.sets[0].add(index, length)

    @property
    def spread(self) -> int:
        return self.sets[0].total - self.sets[-1].total

    def merge(self, other: _State) -> None:
        for one, another in zip(self.sets, reversed(other.sets), strict=True):
            one.merge(another)
        self.sets.sort(reverse=True)

    def __lt__(self, other: _State) -> bool:
        """The heap gives the smallest: the largest spread."""
        if self.spread != other.spread:
            return self.spread > other.spread
        return self.sets[0] > other.sets[0]


def karmarkar_karp(lengths: Sequence[int], k: int) -> list[list[int]]:
    """Indices in k parts of nearly equal sum."""
    ascending = sorted((length, index) for index, length in enumerate(lengths))
    states = [_State(index, length, k) for length, index in ascending]
    heapq.heapify(states)
    while len(states) > 1:
        state = heapq.heappop(states)
        state.merge(heapq.heappop(states))
        heapq.heappush(states, state)
    return [[index for index, _ in part.items] for part in states[0].sets]


def micro_batches(lengths: Sequence[int], max_tokens: int) -> list[list[int]]:
    """As many parts as tokens fill; a part may be larger than `max_tokens`, as verl's may."""
    return karmarkar_karp(lengths, math.ceil(sum(lengths) / max_tokens))
