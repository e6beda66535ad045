"""Tests that run without --slow."""

import pytest

from tests.mpi.plugin import sizes_of_every_push


@pytest.mark.parametrize(
    ("sizes", "often"),
    [((1,), 1), ((1, 2), 2), ((2, 4), 4), ((4, 2, 1), 4), ((2, 8, 16), 2), ((8, 16), 8)],
)
def test_a_test_for_several_worlds_runs_on_one_of_them(sizes, often):
    assert sizes_of_every_push(pytest.mark.world(*sizes).mark) == [often]


def test_a_test_without_a_world_or_with_cases_in_each():
    assert sizes_of_every_push(None) == [4]
    assert sizes_of_every_push(pytest.mark.world(1, 2, each_push=True).mark) == [1, 2]
    assert sizes_of_every_push(pytest.mark.world(2, 4, often=2).mark) == [2]
