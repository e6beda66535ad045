"""Dealing work out evenly: sequences to ranks, sequences to micro-batches."""

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


def _difference(costs: Sequence[float], num_bins: int) -> _Deal:
    # Ascending, so the largest cost first; `taken` of them are in a deal by now.
    single = sorted((-float(cost), index) for index, cost in enumerate(costs))
    taken = 0
    full: list[tuple[float, int, _Deal]] = []  # a heap: minus the spread, least index, deal

    def take(most: int) -> tuple[int, _Deal]:
        """The deal of the largest spread, or as many single costs as come before it."""
        nonlocal taken
        stop = min(taken + most, len(single))
        if full:
            stop = bisect_left(single, full[0][:2], taken, stop)
        if stop == taken:
            return heapq.heappop(full)[1:]
        part, taken = single[taken:stop], stop
        return min(index for _, index in part), [(cost, [index]) for cost, index in part]

    order, deal = len(single), _Deal()
    while taken < len(single) or full:
        other_order, other = take(max(num_bins - len(deal), 1))
        deal, order = _merge(deal, other, num_bins), min(order, other_order)
        # With an empty bin its spread is that of its largest bin, and still the largest of all.
        if len(deal) == num_bins and (taken < len(single) or full):
            heapq.heappush(full, (deal[0][0] - deal[-1][0], order, deal))
            order, deal = take(max(num_bins - 1, 1))
    return deal


def _bins(deal: _Deal, num_bins: int) -> list[list[int]]:
    return [sorted(indices) for _, indices in deal] + [[] for _ in range(num_bins - len(deal))]


def _merge(deal: _Deal, other: _Deal, num_bins: int) -> _Deal:
    """The largest bins of one deal with the smallest of the other; uses up its arguments."""
    small, large = (deal, other) if len(deal) < len(other) else (other, deal)
    num_shared = max(len(small) + len(large) - num_bins, 0)
    for place in range(num_shared):
        cost, indices = small[place - num_shared]
        # Those that join it were the last of `large`, in reverse order.
        with_cost, with_indices = large.pop()
        joined = indices + with_indices if small is deal else with_indices + indices
        small[place - num_shared] = (cost + with_cost, joined)
    if 8 * len(small) > len(large):
        return sorted(large + small)
    for part in small:
        insort(large, part)
    return large


def micro_batches(
    lengths: Sequence[int], max_tokens: int, multiple: int = 1, at_least: int = 1
) -> list[list[int]]:
    """Indices of sequences in balanced micro-batches of at most `max_tokens` tokens each.

    As few as best-fit-decreasing needs, or fewer where `balance` fits the budget with fewer. A
    sequence longer than `max_tokens` gets a micro-batch of its own.

    Args:
        lengths: tokens of each sequence.
        max_tokens: budget of a micro-batch.
        multiple: the number of micro-batches is a multiple of this (interleaved pipelines).
        at_least: the least number of micro-batches; some may be empty.
    """

    def balanced(count: int) -> list[list[int]] | None:
        deal = _difference(lengths, count)
        fits = all(len(indices) < 2 or -cost <= max_tokens for cost, indices in deal)
        return _bins(deal, count) if fits else None

    packed = _best_fit(lengths, max_tokens)
    enough = -(-max(len(packed), at_least, 1) // multiple)  # multiples
    best = balanced(enough * multiple)
    if best is None:
        best = packed + [[] for _ in range(enough * multiple - len(packed))]
    # Two sequences of more than half the budget each are never together.
    tokens = sum(min(length, max_tokens) for length in lengths)
    least = max(-(-tokens // max_tokens), sum(2 * n > max_tokens for n in lengths), at_least, 1)
    too_few, tried = -(-least // multiple) - 1, enough - 1
    while tried > too_few:
        if found := balanced(tried * multiple):
            enough, best = tried, found
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
