"""Routes of samples between ranks when they move to another placement."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

Groups = Sequence[Sequence[int]]


@dataclass(frozen=True)
class Origin:
    """The rank that sends a message."""

    rank: int
    hop: int
    """0: it had the data at the start; 1: it received them in hop 0."""


class Routes:
    """One rank's routes from each source group to each target group.

    On two nodes with ranks 0-3 and 4-7, source groups (0, 1) (2, 3) and the target group (4 .. 7)::

        what (0, 1) has   0 -> 4,  then 4 -> 5, 6, 7
        what (2, 3) has   2 -> 5,  then 5 -> 4, 6, 7

    Args:
        rank: this rank.
        node_of: node of each rank.
        sources, targets: ranks of each group.
    """

    def __init__(self, rank: int, node_of: Sequence[int], sources: Groups, targets: Groups) -> None:
        self._rank, self._node_of = rank, node_of
        self._sources, self._targets = sources, targets
        self.source_group = _group_of(rank, sources)
        """This rank's source group; None if it is in none."""
        self.target_group = _group_of(rank, targets)
        self._sources_by_node = cache(lambda group: self._by_node(sources[group]))
        self._targets_by_node = cache(lambda group: self._by_node(targets[group]))

    def origin(self, source: int) -> Origin:
        """Return who sends this rank the data from source group `source`."""
        assert self.target_group is not None
        return self._origin(source, self.target_group, self._rank)

    def receivers(self, target: int) -> list[int]:
        """Return the ranks of target group `target` that this rank sends to in hop 0."""
        assert self.source_group is not None
        source, here = self.source_group, Origin(self._rank, 0)
        return [
            rank
            for rank in self._targets[target]
            if rank not in self._sources[source] and self._origin(source, target, rank) == here
        ]

    def mates(self, source: int) -> list[int]:
        """Return the ranks of its node to which it forwards data from group `source` in hop 1."""
        assert self.target_group is not None
        node = self._node_of[self._rank]
        if node in self._sources_by_node(source) or self.origin(source).hop:
            return []
        return [r for r in self._targets_by_node(self.target_group)[node] if r != self._rank]

    def _origin(self, source: int, target: int, receiver: int) -> Origin:
        node = self._node_of[receiver]
        mates = self._targets_by_node(target)[node]
        if near := self._sources_by_node(source).get(node):
            return Origin(near[mates.index(receiver) % len(near)], 0)
        first = mates[source % len(mates)]
        if receiver != first:
            return Origin(first, 1)
        holders = self._sources[source]
        return Origin(holders[(target + node) % len(holders)], 0)

    def _by_node(self, ranks: Sequence[int]) -> Mapping[int, list[int]]:
        by_node: dict[int, list[int]] = {}
        for rank in ranks:
            by_node.setdefault(self._node_of[rank], []).append(rank)
        return by_node


def _group_of(rank: int, groups: Groups) -> int | None:
    return next((i for i, ranks in enumerate(groups) if rank in ranks), None)
