"""How the fragments that travel between two ranks become messages, and when each one travels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from verl_hpc.layout.fragments import Fragment
from verl_hpc.layout.planner import Bundle, Route
from verl_hpc.layout.rounds import Pair, Run, rounds_of

_ALONE = 4
"""A fragment of at least one in so many parts of a bucket is a message of its own: it can be sent
from where it lies and received where it belongs, without a copy through a bucket."""


def routes_by_pair(hop: Sequence[Route]) -> dict[Pair, list[Route]]:
    """The routes of a hop by (sending rank, receiving rank)."""
    pairs: dict[Pair, list[Route]] = {}
    for route in hop:
        pairs.setdefault((int(route.source), route.target), []).append(route)
    return pairs


def messages(routes: Sequence[Route], bucket_bytes: int) -> list[list[tuple[Fragment, Route]]]:
    """The messages that carry the fragments of one pair of ranks, largest first.

    Wider elements come first within a message, so that each stays aligned.
    """
    items = [(fragment, route) for route in routes for fragment in route.bundle.fragments]
    cut = _cut([fragment.num_bytes for fragment, _ in items], bucket_bytes)
    return [sorted((items[i] for i in message), key=_narrowness) for message in cut]


def _narrowness(item: tuple[Fragment, Route]) -> int:
    return -(item[0].num_bytes // item[0].box.num_elements)


def message_sizes(bundles: Sequence[Bundle], bucket_bytes: int) -> list[int]:
    """Bytes of each message that carries `bundles` between one pair of ranks, largest first."""
    sizes = [fragment.num_bytes for bundle in bundles for fragment in bundle.fragments]
    return [sum(sizes[i] for i in message) for message in _cut(sizes, bucket_bytes)]


def _cut(sizes: Sequence[int], bucket_bytes: int) -> list[list[int]]:
    """Indices of the fragments of each message: the large ones alone, small ones together."""
    alone: list[list[int]] = []
    shared: list[list[int]] = []
    filled = 0
    for i, size in enumerate(sizes):
        if size * _ALONE >= bucket_bytes:
            alone.append([i])
        elif shared and filled + size <= bucket_bytes:
            shared[-1].append(i)
            filled += size
        else:
            shared.append([i])
            filled = size
    return sorted(alone + shared, key=lambda message: -sum(sizes[i] for i in message))


def sizes_by_pair(
    by_pair: Mapping[Pair, Sequence[Route]], bucket_bytes: int
) -> dict[Pair, list[int]]:
    """Bytes of every pair's messages; pairs that carry the same bundles share one list."""
    known: dict[tuple[int, ...], list[int]] = {}
    sizes: dict[Pair, list[int]] = {}
    for pair, routes in by_pair.items():
        key = tuple(id(route.bundle) for route in routes)
        if key not in known:
            known[key] = message_sizes([route.bundle for route in routes], bucket_bytes)
        sizes[pair] = known[key]
    return sizes


def schedule(by_pair: Mapping[Pair, Sequence[Route]], bucket_bytes: int) -> dict[Pair, list[Run]]:
    """The rounds in which the messages of every pair of a hop travel."""
    sizes = sizes_by_pair(by_pair, bucket_bytes)
    return rounds_of({pair: len(of_pair) for pair, of_pair in sizes.items()})
