"""Dealing out work, against every possible deal of small cases."""

import heapq
import random
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verl_hpc.placement import balance as module
from verl_hpc.placement.balance import attention_cost, balance, micro_batches

costs = st.lists(st.integers(1, 50), max_size=12)
bins = st.integers(1, 5)


def sums(costs, dealt):
    return [sum(costs[i] for i in indices) for indices in dealt]


def least_largest_sum(costs, num_bins):
    """Return the smallest largest bin of all deals."""
    return min(
        max(sum(c for c, b in zip(costs, deal, strict=True) if b == k) for k in range(num_bins))
        for deal in product(range(num_bins), repeat=len(costs))
    )


def test_the_docstrings_costs():
    assert balance([8, 7, 6, 5, 4], 2) == [[1, 3, 4], [0, 2]]


@given(st.lists(st.floats(0, 1e6) | st.integers(0, 50), max_size=30), bins)
def test_every_index_is_dealt_once_largest_bin_first(costs, num_bins):
    dealt = balance(costs, num_bins)
    assert len(dealt) == num_bins
    assert sorted(i for indices in dealt for i in indices) == list(range(len(costs)))
    assert all(indices == sorted(indices) for indices in dealt)
    loads = sums(costs, dealt)
    assert loads == pytest.approx(sorted(loads, reverse=True), rel=1e-9)


@given(st.lists(st.integers(1, 50), min_size=1, max_size=7), st.integers(1, 3))
def test_the_largest_bin_is_near_the_least_possible(costs, num_bins):
    """4/3 - 1/(3k), the bound of the largest-differencing method for any number k of bins."""
    bound = 4 / 3 - 1 / (3 * num_bins)
    assert max(sums(costs, balance(costs, num_bins))) <= bound * least_largest_sum(costs, num_bins)


def test_many_sequences_are_dealt_almost_evenly():
    lengths = [37 + 997 * i % 2048 for i in range(512)]
    loads = sums(lengths, balance(lengths, 8))
    assert max(loads) - min(loads) <= 0.001 * max(loads)


@given(costs.filter(len), bins)
def test_the_deal_depends_on_nothing_else(costs, num_bins):
    assert balance(costs, num_bins) == balance(tuple(map(float, costs)), num_bins)


def test_equal_costs_are_dealt_in_equal_numbers():
    assert sorted(map(len, balance([3] * 12, 4))) == [3] * 4


@pytest.mark.parametrize("num_bins", [1, 3])
def test_fewer_costs_than_bins(num_bins):
    assert balance([], num_bins) == [[]] * num_bins
    assert balance([5], num_bins) == [[0], *[[]] * (num_bins - 1)]
    assert balance([4, 5], 4) == [[1], [0], [], []]


lengths = st.lists(st.integers(1, 60), max_size=14)


@given(lengths, st.integers(1, 100), st.integers(1, 4))
def test_micro_batches_keep_the_rules(lengths, max_tokens, multiple):
    dealt = micro_batches(lengths, max_tokens, multiple)
    assert sorted(i for indices in dealt for i in indices) == list(range(len(lengths)))
    assert len(dealt) % multiple == 0
    for indices, tokens in zip(dealt, sums(lengths, dealt), strict=True):
        assert tokens <= max_tokens or len(indices) == 1


def differencing(costs, num_bins):
    """Karmarkar-Karp as it is written down, with every empty bin: slow and plain."""
    empty = [(0.0, [])] * (num_bins - 1)
    heap = [(-cost, i, [(float(cost), [i]), *empty]) for i, cost in enumerate(costs)]
    heapq.heapify(heap)
    while len(heap) > 1:
        _, order, one = heapq.heappop(heap)
        _, other_order, other = heapq.heappop(heap)
        merged = [(s + t, b + c) for (s, b), (t, c) in zip(one, reversed(other), strict=True)]
        merged.sort(key=lambda pair: (-pair[0], pair[1]))
        spread = merged[-1][0] - merged[0][0]
        heapq.heappush(heap, (spread, min(order, other_order), merged))
    return [sorted(indices) for _, indices in heap[0][2]]


@given(
    st.lists(st.integers(1, 9) | st.floats(1e-3, 1e3), min_size=1, max_size=40), st.integers(1, 12)
)
def test_it_is_the_differencing_method(costs, num_bins):
    assert balance(costs, num_bins) == differencing(costs, num_bins)


def least_number(lengths, max_tokens):
    """Return the fewest bins of all packings; sequences beyond the budget travel alone."""
    best = len(lengths)

    def place(index, bins):
        nonlocal best
        if len(bins) >= best:
            return
        if index == len(lengths):
            best = len(bins)
            return
        for k in range(len(bins)):
            if bins[k] + lengths[index] <= max_tokens:
                place(index + 1, [*bins[:k], bins[k] + lengths[index], *bins[k + 1 :]])
        place(index + 1, [*bins, lengths[index]])

    place(0, [])
    return best


@given(st.lists(st.integers(1, 60), min_size=1, max_size=8), st.integers(10, 100))
def test_hardly_more_micro_batches_than_the_fewest_possible(lengths, max_tokens):
    count, fewest = len(micro_batches(lengths, max_tokens)), least_number(lengths, max_tokens)
    assert fewest <= count <= fewest + (fewest > 1)


def one_more_at_a_time(lengths, max_tokens, multiple):
    """The first number of bins from the least upwards whose balanced deal keeps the budget."""
    count = max(-(-sum(lengths) // max_tokens), 1)
    count += -count % multiple
    while count < len(lengths) and any(
        len(indices) > 1 and sum(lengths[i] for i in indices) > max_tokens
        for indices in balance(lengths, count)
    ):
        count += multiple
    return count


def test_never_more_micro_batches_than_the_plain_search_finds():
    dice = random.Random(7)
    fewer = 0
    for _ in range(800):
        high = dice.choice([10, 60, 500, 5000])
        low = dice.choice([1, high // 3 + 1, high // 2 + 1])
        lengths = [dice.randint(low, high) for _ in range(dice.randint(1, 40))]
        budget = int(high * dice.choice([1, 1.3, 2, 3, 4]))
        limits = budget, dice.choice([1, 1, 2, 4])
        count, before = len(micro_batches(lengths, *limits)), one_more_at_a_time(lengths, *limits)
        assert count <= before, (lengths, limits)
        fewer += count < before
    assert fewer > 20, "and often fewer"


@pytest.mark.parametrize(
    "lengths, max_tokens, count",
    [
        ([8193] * 4096, 16384, 4096),
        ([5462] * 4096, 16384, 2048),
        ([16384] * 4096, 16384, 4096),
        ([1] * 4096, 16384, 1),
        ([1] * 4096, 3, 1366),
        ([10**6] + [1] * 4095, 16384, 2),
        ([8193] * 2048 + [8191] * 2048, 16384, 2048),
        ([4000 + 733 * i % 3001 for i in range(4096)], 16384, 1486),
        ([65 + 997 * i % 2999 for i in range(4096)], 16384, 392),
    ],
)
def test_four_thousand_sequences_of_every_mix(monkeypatch, lengths, max_tokens, count):
    """What they cost is the number of deals that are tried; each is far below a second."""
    deals = []
    original = module._difference
    monkeypatch.setattr(module, "_difference", lambda *a: deals.append(a[1]) or original(*a))
    dealt = micro_batches(lengths, max_tokens)
    assert len(dealt) == count
    assert sorted(i for indices in dealt for i in indices) == list(range(len(lengths)))
    assert all(len(b) < 2 or sum(lengths[i] for i in b) <= max_tokens for b in dealt)
    assert 1 <= len(deals) <= 12


def test_micro_batches_are_about_equal():
    lengths = [65 + 997 * i % 2999 for i in range(4096)]
    loads = sums(lengths, micro_batches(lengths, 16384))
    assert max(loads) <= 1.01 * sum(loads) / len(loads)


def test_a_sequence_beyond_the_budget_travels_alone():
    assert [0] in micro_batches([100, 3, 3, 3], 10)
    assert [1] in micro_batches([9, 11, 9], 10)


def test_the_number_is_a_multiple_for_interleaved_pipelines():
    dealt = micro_batches([10, 10, 10], 10, multiple=2)
    assert len(dealt) == 4
    assert sorted(map(len, dealt)) == [0, 1, 1, 1]


def test_nothing_to_do_is_still_a_micro_batch():
    """Ranks of one group must run the same number of passes."""
    assert micro_batches([], 10) == [[]]
    assert micro_batches([], 10, multiple=2) == [[], []]


def test_attention_makes_long_sequences_dearer_than_their_tokens():
    """Operations a layer: 24 h^2 a token in linear layers, 4 h L a token in attention."""
    hidden = 64
    for length in (1, 100, 5000):
        operations = length * (24 * hidden**2 + 4 * hidden * length)
        ratio = attention_cost(length, hidden) / attention_cost(1, hidden)
        assert ratio == pytest.approx(operations / (24 * hidden**2 + 4 * hidden), rel=1e-12)
