"""Rank grids against numpy's reshape, whose last axis varies fastest."""

from math import prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from verl_hpc.errors import LayoutError
from verl_hpc.layout.grid import RankGrid, nodes_of

grids = st.builds(
    lambda sizes, first: RankGrid.of(first, **dict(zip("abcd", sizes, strict=False))),
    st.lists(st.integers(1, 4), min_size=1, max_size=4),
    st.integers(0, 9),
)


def cube(grid):
    """Ranks as an array indexed by the axes in the grid's order."""
    ranks = np.arange(grid.first_rank, grid.first_rank + grid.size)
    return ranks.reshape(grid.sizes[::-1]).transpose()


@given(grids)
def test_the_first_axis_varies_fastest(grid):
    for index, rank in np.ndenumerate(cube(grid)):
        place = dict(zip(grid.axes, index, strict=True))
        assert (grid.rank(**place), grid.coordinates(int(rank))) == (rank, place)


@given(grids, st.data())
def test_ranks_are_those_with_the_given_coordinates(grid, data):
    fixed = {
        axis: data.draw(st.integers(0, grid.axis_size(axis) - 1))
        for axis in grid.axes
        if data.draw(st.booleans())
    }
    index = tuple(fixed.get(axis, slice(None)) for axis in grid.axes)
    assert grid.ranks(**fixed) == tuple(sorted(np.ravel(cube(grid)[index]).tolist()))


@given(grids, st.data())
def test_groups_agree_on_all_other_axes(grid, data):
    axes = data.draw(st.lists(st.sampled_from(grid.axes), unique=True))
    groups = grid.groups(*axes)
    assert sorted(r for group in groups for r in group) == sorted(grid.ranks())
    assert groups == sorted(groups), "ordered by first rank"
    for group in groups:
        assert list(group) == sorted(group)
        others = [{a: i for a, i in grid.coordinates(r).items() if a not in axes} for r in group]
        assert all(other == others[0] for other in others)
        assert len(group) == prod(grid.axis_size(a) for a in axes)


@pytest.mark.parametrize("size", [0, -2])
def test_a_size_below_one_is_refused_by_name(size):
    with pytest.raises(LayoutError, match=rf"^dp = {size}: .* whole number from 1 up"):
        RankGrid.of(tp=2, dp=size)


def test_nodes_are_filled_one_after_another():
    assert nodes_of(8, 4) == (0, 0, 0, 0, 1, 1, 1, 1)
    assert nodes_of(5, 2) == (0, 0, 1, 1, 2)
    assert nodes_of(3, 8) == (0, 0, 0)
