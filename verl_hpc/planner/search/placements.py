"""Placements: which models share ranks, and how many ranks each set of them has.

Source: HybridFlow (arXiv 2409.19256), section 6, Algorithm 1: placements are the set partitions of
the models (15 for the four of PPO, the Bell number B4), and allotments the ways to divide the GPUs
among the sets.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import comb

MOST_ALLOTMENTS = 60_000
"""Limit on the allotments of a search, over all placements."""
_MOST_UNITS = 128
"""Limit on the units that a search's ranks are divided into: each model's layouts are computed for
every number of them."""

Partition = tuple[tuple[str, ...], ...]


def set_partitions(names: Sequence[str]) -> list[Partition]:
    """List all partitions of names into sets, the fewest sets first; names keep their order.

    Of a, b, c: {a b c}, {a b}{c}, {a c}{b}, {a}{b c}, {a}{b}{c}.
    """
    return sorted(_partitions(tuple(names)), key=len)


def _partitions(names: tuple[str, ...]) -> Iterator[Partition]:
    if not names:
        yield ()
        return
    first, *rest = names
    for others in _partitions(tuple(rest)):
        for i, members in enumerate(others):
            yield ((first, *members), *others[:i], *others[i + 1 :])
        yield ((first,), *others)


def unit_of(num_ranks: int, ranks_per_node: int, num_sets: Sequence[int]) -> int:
    """Size of the unit in ranks of which allotments are multiples: one on a single node, else whole
    nodes, as many as the limits on units and allotments require.

    Args:
        num_sets: of each placement.
    """
    if num_ranks <= ranks_per_node:
        return 1
    nodes = num_ranks // ranks_per_node
    width = -(-nodes // _MOST_UNITS)
    while sum(comb(-(-nodes // width) - 1, k - 1) for k in num_sets) > MOST_ALLOTMENTS:
        width += 1
    return width * ranks_per_node


def allotments(num_ranks: int, unit: int, least: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Yield the ranks of each set: multiples of `unit` of at least `least` that add up to
    `num_ranks`; the last set takes the remainder.

    Of 8 in units of 2, each at least 2, for 2 sets: (2, 6) (4, 4) (6, 2).
    """
    if len(least) == 1:
        if num_ranks >= least[0]:
            yield (num_ranks,)
        return
    first = -(-max(least[0], unit) // unit) * unit
    for size in range(first, num_ranks - sum(least[1:]) + 1, unit):
        for rest in allotments(num_ranks - size, unit, least[1:]):
            yield (size, *rest)
