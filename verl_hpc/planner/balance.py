"""Dealing work out evenly: sequences to ranks, sequences to micro-batches."""

from __future__ import annotations

import heapq
from collections.abc import Sequence


def balance(costs: Sequence[float], num_bins: int) -> list[list[int]]:
    """Indices of `costs` in `num_bins` bins of nearly equal cost (Karmarkar-Karp differencing).

    Costs 8, 7, 6, 5, 4 in 2 bins give {8, 6} and {7, 5, 4}. The largest spread is combined first;
    ties go by index, so every rank computes the same. Bins come largest first, indices ascending;
    with fewer costs than bins some are empty.

    Source: Karmarkar and Karp, "The differencing method of set partitioning", 1982.
    """
    if not costs:
        return [[] for _ in range(num_bins)]
    heap: list[tuple[float, int, list[float], list[list[int]]]] = []
    for index, cost in enumerate(costs):
        sums = [float(cost)] + [0.0] * (num_bins - 1)
        bins: list[list[int]] = [[index]] + [[] for _ in range(num_bins - 1)]
        heap.append((-float(cost), index, sums, bins))
    heapq.heapify(heap)
    while len(heap) > 1:
        _, order, sums, bins = heapq.heappop(heap)
        _, other_order, other_sums, other_bins = heapq.heappop(heap)
        # Largest of one to smallest of the other.
        merged = [
            (s + t, b + c)
            for s, t, b, c in zip(
                sums, reversed(other_sums), bins, reversed(other_bins), strict=True
            )
        ]
        merged.sort(key=lambda pair: (-pair[0], pair[1]))
        sums, bins = [m[0] for m in merged], [m[1] for m in merged]
        heapq.heappush(heap, (sums[-1] - sums[0], min(order, other_order), sums, bins))
    return [sorted(indices) for indices in heap[0][3]]


def micro_batches(
    lengths: Sequence[int], max_tokens: int, multiple: int = 1, at_least: int = 1
) -> list[list[int]]:
    """Indices of sequences in balanced micro-batches of at most `max_tokens` tokens each.

    A sequence longer than `max_tokens` gets a micro-batch of its own.

    Args:
        lengths: tokens of each sequence.
        max_tokens: budget of a micro-batch.
        multiple: the number of micro-batches is a multiple of this (interleaved pipelines).
        at_least: the least number of micro-batches; some may be empty.
    """
    total = sum(lengths)
    count = max(-(-total // max_tokens), at_least, 1)
    count = -(-count // multiple) * multiple
    while True:
        bins = balance(lengths, count)
        if count >= len(lengths) or all(
            len(b) <= 1 or sum(lengths[i] for i in b) <= max_tokens for b in bins
        ):
            return bins
        count += multiple


def attention_cost(length: int, hidden_size: int) -> float:
    """Relative cost of one sequence: linear layers go by length, attention by its square.

    A decoder layer does about 24 h^2 operations a token in its linear layers and 4 h L in
    attention, so one sequence costs L (1 + L / (6 h)) up to a constant.
    """
    return length * (1.0 + length / (6.0 * hidden_size))
