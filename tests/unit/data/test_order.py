"""The order of rows: permutations that every rank and every restart computes alike."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verl_hpc.data.order import Order, Position
from verl_hpc.errors import DataError

orders = st.fixed_dictionaries(
    {"num_rows": st.integers(1, 40), "seed": st.integers(0, 2**40), "shuffle": st.booleans()}
)


@given(orders, st.integers(0, 5))
def test_every_epoch_is_a_permutation(settings, epoch):
    size = settings["num_rows"]
    rows, after = Order(**settings).take(Position(epoch), size)
    assert (sorted(rows), after) == (list(range(size)), Position(epoch + 1, 0))


@given(orders, st.lists(st.integers(0, 50), min_size=1, max_size=6))
def test_steps_of_any_size_see_one_stream(settings, counts):
    whole, end = Order(**settings).take(Position(), sum(counts))
    order, position, pieces = Order(**settings), Position(), []
    for count in counts:
        rows, position = order.take(position, count)
        pieces += rows
    assert (pieces, position) == (whole, end)


@given(orders, st.lists(st.integers(0, 3), min_size=2, max_size=8))
def test_an_epoch_does_not_depend_on_those_asked_for_before(settings, epochs):
    size = settings["num_rows"]
    order = Order(**settings)
    for epoch in epochs:
        fresh = Order(**settings).take(Position(epoch), size)
        assert order.take(Position(epoch), size) == fresh


def test_without_shuffling_rows_come_as_they_are():
    order = Order(3, seed=1, shuffle=False)
    assert order.take(Position(0, 1), 7) == ([1, 2, 0, 1, 2, 0, 1], Position(2, 2))


def test_the_permutation_is_the_same_on_every_python():
    """Golden values: a change here changes what every run trains on."""
    rows, position = Order(5, seed=0, shuffle=True).take(Position(), 12)
    assert (rows, position) == ([0, 3, 4, 1, 2, 1, 3, 0, 2, 4, 1, 0], Position(2, 2))


def test_rows_are_spread_evenly():
    """Each of 4 rows comes first in a quarter of 4000 epochs, give or take 5 deviations."""
    order = Order(4, seed=0, shuffle=True)
    firsts = [order.take(Position(epoch), 1)[0][0] for epoch in range(4000)]
    assert all(abs(firsts.count(row) - 1000) < 140 for row in range(4))


def test_one_permutation_is_held_at_a_time():
    order = Order(1000, seed=0, shuffle=True)
    held = order._rows
    order.take(Position(0, 900), 2500)
    assert order._rows is held
    assert held.itemsize * len(held) == 8000


@pytest.mark.parametrize("offset", [5, 9, -1])
def test_a_position_outside_the_data_set_is_refused(offset):
    with pytest.raises(DataError, match=rf"row {offset} of epoch 2, and the data set has 5 rows"):
        Order(5, seed=0, shuffle=True).take(Position(2, offset), 1)
