"""How many micro-batches a pipeline gets, and what is in each."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verl_hpc.placement.balance import attention_cost, micro_batches
from verl_hpc.placement.pipeline_fill import dealt_to, wanted


@pytest.mark.parametrize(
    "lengths, num_stages, count",
    [
        ([970] * 32, 4, 16),
        ([100] * 32, 4, 8),
        ([200] * 32, 4, 12),
        ([970] * 3, 4, 3),
        ([10] * 32, 2, 4),
        ([], 4, 0),
    ],
)
def test_two_to_four_a_stage_and_a_sequence_for_each(lengths, num_stages, count):
    assert wanted(lengths, num_stages) == count


def deal(count, lengths, max_tokens, costs=None):
    known = micro_batches(lengths, max_tokens)
    return dealt_to(max(count, len(known)), known, lengths, costs or lengths, max_tokens)


def test_ppo_of_70b_has_sixteen_micro_batches_where_it_had_two():
    lengths = [300 + 41 * i for i in range(32)]
    assert len(micro_batches(lengths, 16384)) == 2
    dealt = deal(wanted(lengths, 4), lengths, 16384)
    sums = [sum(lengths[i] for i in indices) for indices in dealt]
    assert len(dealt) == 16
    assert max(sums) <= 1.03 * sum(sums) / 16


def test_work_is_balanced_where_tokens_are_not():
    """With a hidden size of 100 a token of the longest costs 9 of the shortest."""
    lengths = [6000, 6000, *[300] * 40]
    costs = [attention_cost(length, 100) for length in lengths]
    work = [sum(costs[i] for i in b) for b in deal(4, lengths, 13000, costs)]
    assert max(work) == max(costs), "the long ones are alone"
    by_length = [sum(costs[i] for i in b) for b in deal(4, lengths, 13000)]
    assert max(work) <= max(by_length)


lengths = st.lists(st.integers(1, 60), max_size=14)


@given(lengths, st.integers(1, 100), st.integers(1, 12))
def test_the_number_is_exact_and_budgets_are_kept(lengths, max_tokens, count):
    costs = [attention_cost(length, 4) for length in lengths]
    known = micro_batches(lengths, max_tokens)
    count = max(count, len(known))
    dealt = dealt_to(count, known, lengths, costs, max_tokens)
    assert len(dealt) == count
    assert sorted(i for indices in dealt for i in indices) == list(range(len(lengths)))
    for indices in dealt:
        assert len(indices) < 2 or sum(lengths[i] for i in indices) <= max_tokens
    if count <= len(lengths) and dealt != [*known, *[[]] * (count - len(known))]:
        assert all(dealt)
