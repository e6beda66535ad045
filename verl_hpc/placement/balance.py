"""Even distribution of work: sequences to ranks, and sequences to micro-batches."""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Sequence


def balance(costs: Sequence[float], num_bins: int) -> list[list[int]]:
    """Indices of `costs` in `num_bins` bins of nearly equal cost (Karmarkar-Karp differencing).

    Costs 8, 7, 6, 5, 4 in 2 bins give {8, 6} and {7, 5, 4}. The largest spread is combined first;
    ties go by index, so every rank computes the same. Bins come largest first, indices ascending;
    with fewer costs than bins some are empty.

    Source: Karmarkar and Karp, "The differencing method of set partitioning", 1982.
    """
    return _bins(_difference(costs, num_bins), num_bins)


_Deal = list[tuple[float, list[int]]]
"""Bins as (minus their cost, indices), ascending. Empty bins are left out: most deals that the
differencing goes through have few others."""


class _Queue:
    """Priority queue of deals, largest spread first; ties go by least index.

    Single costs are deals of one bin, kept in a sorted list from which many are taken at once.
    """

    def __init__(self, costs: Sequence[float]) -> None:
        # Minus the cost, so that the largest comes first.
        self._single = sorted((-float(cost), index) for index, cost in enumerate(costs))
        self._taken = 0  # of `_single`
        # A heap of (minus the spread, least index, deal).
        self._dealt: list[tuple[float, int, _Deal]] = []

    def __bool__(self) -> bool:
        return self._taken < len(self._single) or bool(self._dealt)

    def put(self, deal: _Deal, least_index: int) -> None:
        """Add a deal without empty bins."""
        heapq.heappush(self._dealt, (deal[0][0] - deal[-1][0], least_index, deal))

    def take(self, most: int) -> tuple[int, _Deal]:
        """Least index and deal of the largest spread. If that is a single cost, it is dealt with
        the single costs that come before the next deal, a bin each, at most `most`."""
        begin = self._taken
        end = min(begin + most, len(self._single))
        if self._dealt:
            end = bisect_left(self._single, self._dealt[0][:2], begin, end)
        if end == begin:
            return heapq.heappop(self._dealt)[1:]
        part, self._taken = self._single[begin:end], end
        return min(index for _, index in part), [(cost, [index]) for cost, index in part]


def _difference(costs: Sequence[float], num_bins: int) -> _Deal:
    queue = _Queue(costs)
    least_index, deal = len(costs), _Deal()
    while queue:
        other_index, other = queue.take(max(num_bins - len(deal), 1))
        deal, least_index = _merge(deal, other, num_bins), min(least_index, other_index)
        # The spread of a deal with an empty bin is its largest bin. No other deal has a larger
        # one: it would be the next to be taken, and stays here instead.
        if len(deal) == num_bins and queue:
            queue.put(deal, least_index)
            least_index, deal = queue.take(max(num_bins - 1, 1))
    return deal


def _bins(deal: _Deal, num_bins: int) -> list[list[int]]:
    return [sorted(indices) for _, indices in deal] + [[] for _ in range(num_bins - len(deal))]


def _merge(deal: _Deal, other: _Deal, num_bins: int) -> _Deal:
    """Join the largest bins of one deal with the smallest of the other; consumes its arguments.

    In 3 bins, 9 and 5 with 7 and 4::

        deal               9  5  -
        other, reversed    -  4  7
        merged             9  9  7
    """
    small, large = (deal, other) if len(deal) < len(other) else (other, deal)
    num_shared = max(len(small) + len(large) - num_bins, 0)
    for place in range(-num_shared, 0):
        cost, indices = small[place]
        # The smallest bin that is left of `large`: the two lie in opposite directions.
        with_cost, with_indices = large.pop()
        # Indices of `deal` first, whichever is small: they decide between bins of equal cost.
        joined = indices + with_indices if small is deal else with_indices + indices
        small[place] = (cost + with_cost, joined)
    # A few bins find their places sooner than all are sorted.
    if 8 * len(small) > len(large):
        return sorted(large + small)
    for part in small:
        insort(large, part)
    return large


def micro_batches(lengths: Sequence[int], max_tokens: int, multiple: int = 1) -> list[list[int]]:
    """Indices of sequences in balanced micro-batches of at most `max_tokens` tokens each.

    As few as best-fit-decreasing needs, or fewer where `balance` fits the budget with fewer. A
    sequence longer than `max_tokens` gets its own micro-batch.

    Args:
        lengths: tokens of each sequence.
        max_tokens: budget of a micro-batch.
        multiple: the number of micro-batches is a multiple of this (interleaved pipelines).
    """

    def balanced(count: int) -> list[list[int]] | None:
        deal = _difference(lengths, count)
        fits = all(len(indices) < 2 or -cost <= max_tokens for cost, indices in deal)
        return _bins(deal, count) if fits else None

    packed = _best_fit(lengths, max_tokens)
    enough = -(-max(len(packed), 1) // multiple)  # multiples
    best = balanced(enough * multiple)
    if best is None:
        best = packed + [[] for _ in range(enough * multiple - len(packed))]
    # Two sequences of more than half the budget each are never together.
    tokens = sum(min(length, max_tokens) for length in lengths)
    least = max(-(-tokens // max_tokens), sum(2 * n > max_tokens for n in lengths), 1)
    # Bisect between that bound and what best-fit-decreasing needs, once one fewer has worked.
    too_few, tried = -(-least // multiple) - 1, enough - 1
    while tried > too_few:
        if fewer := balanced(tried * multiple):
            enough, best = tried, fewer
        elif tried == enough - 1:
            break
        else:
            too_few = tried
        tried = (too_few + enough) // 2
    return best


def _best_fit(lengths: Sequence[int], max_tokens: int) -> list[list[int]]:
    """Best-fit-decreasing: the longest first, each where the least room is left that is enough.

    At most 11/9 of the least possible number of bins, and 4 (Johnson et al., "Worst-case
    performance bounds for simple one-dimensional packing algorithms", 1974).
    """
    bins: list[list[int]] = []
    rooms: list[tuple[int, int]] = []  # (tokens left, bin), ascending
    for index in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        place = bisect_left(rooms, (lengths[index], -1))
        if place == len(rooms):
            rooms.append((max_tokens, len(bins)))
            bins.append([])
        room, chosen = rooms.pop(place)
        bins[chosen].append(index)
        insort(rooms, (room - lengths[index], chosen))
    return [sorted(indices) for indices in bins]


def attention_cost(length: int, hidden_size: int) -> float:
    """Relative cost of one sequence: linear layers go by length, attention by its square.

    A decoder layer does about 24 h^2 operations a token in its linear layers and 4 h L in
    attention, so one sequence costs L (1 + L / (6 h)) up to a constant.
    """
    return length * (1.0 + length / (6.0 * hidden_size))
