"""The largest of numbers on several ranks, against a sorted list."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.algorithms.batches import deal, on_parts
from verl_hpc.algorithms.selection import at_least_kth_largest

numbers = st.floats(allow_nan=False, allow_infinity=False) | st.sampled_from([0.0, -0.0, 1.0, 1.0])


@given(st.data(), st.integers(1, 4), st.integers(1, 5), st.integers(0, 25))
def test_against_a_sorted_list(data, rows, width, count):
    size = rows * width
    values = data.draw(st.lists(numbers, min_size=size, max_size=size))
    among = data.draw(st.lists(st.booleans(), min_size=size, max_size=size))
    values = torch.tensor(values, dtype=torch.float64).view(rows, width)
    among = torch.tensor(among).view(rows, width)
    given_values = sorted(values[among].tolist(), reverse=True)
    least = given_values[min(count, len(given_values)) - 1] if count and given_values else None
    expected = among & (values >= least) if least is not None else torch.zeros_like(among)
    assert at_least_kth_largest(values, among, count).tolist() == expected.tolist()
    deals = [[*part] for part in deal(data.draw, rows)]

    def part(mine, reduce):
        return at_least_kth_largest(values[mine], among[mine], count, reduce)

    for mine, chosen in zip(deals, on_parts(part, deals), strict=True):
        assert chosen.tolist() == expected[mine].tolist()
