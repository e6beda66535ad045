"""The penalty on long responses, by its three cases."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verl_hpc.algorithms.overlong import overlong_penalties


@given(st.integers(1, 100), st.integers(1, 50), st.floats(0, 5))
def test_against_the_cases_of_the_paper(length, buffer, factor):
    longest = 100
    (found,) = overlong_penalties([length], longest, buffer, factor)
    over = length - (longest - buffer)
    expected = -over / buffer * factor if over > 0 else 0.0
    assert found == pytest.approx(expected, rel=1e-12)
