"""Boxes against sets of indices, flat ranges against numpy's own order."""

from itertools import product
from math import prod

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.layout.simulate import window
from verl_hpc.layout.box import Box, View, flat_range_boxes, row_major_strides

shapes = st.lists(st.integers(1, 5), min_size=1, max_size=3).map(tuple)


@st.composite
def boxes(draw, within=None):
    shape = draw(shapes) if within is None else within
    edges = [sorted(draw(st.tuples(st.integers(0, n - 1), st.integers(1, n)))) for n in shape]
    return Box(tuple(a for a, _ in edges), tuple(max(b, a + 1) for a, b in edges))


@st.composite
def pairs(draw):
    shape = draw(shapes)
    return draw(boxes(within=shape)), draw(boxes(within=shape))


def elements(box):
    return set(product(*map(range, box.start, box.stop)))


@given(boxes())
def test_shape_count_and_slices_speak_of_the_same_elements(box):
    grid = np.zeros(box.stop, dtype=int)
    grid[box.slices] = 1
    assert set(zip(*map(list, np.nonzero(grid)), strict=True)) == elements(box)
    assert (grid[box.slices].shape, box.num_elements) == (box.shape, grid.sum())


@given(pairs())
def test_intersection_is_that_of_the_elements(pair):
    a, b = pair
    common = a.intersect(b)
    assert (set() if common is None else elements(common)) == elements(a) & elements(b)
    assert common == b.intersect(a)


@given(pairs())
def test_containment_is_that_of_the_elements(pair):
    a, b = pair
    assert a.contains(b) == (elements(b) <= elements(a))
    assert a.contains(a)


@given(pairs())
def test_shifting_undoes_relative_coordinates(pair):
    box, origin = pair
    relative = box.relative_to(origin)
    moved = {tuple(i - o for i, o in zip(e, origin.start, strict=True)) for e in elements(box)}
    assert (elements(relative), relative.shifted(origin.start)) == (moved, box)


@given(boxes().filter(lambda b: b.num_elements > 1))
def test_halves_are_disjoint_whole_and_nearly_equal(box):
    low, high = box.halve()
    assert elements(low) | elements(high) == elements(box)
    assert not elements(low) & elements(high)
    assert max(elements(low)) < min(elements(high)), "low comes first in memory"
    dim = next(d for d, n in enumerate(box.shape) if n > 1)
    assert 0 <= high.shape[dim] - low.shape[dim] <= 1


@given(shapes)
def test_strides_are_numpys(shape):
    assert row_major_strides(shape) == tuple(s // 8 for s in np.empty(shape).strides)


def test_strides_of_the_docstring_and_of_a_scalar():
    assert row_major_strides((4, 3, 2)) == (6, 2, 1)
    assert row_major_strides(()) == ()


@given(st.data())
def test_the_view_of_a_part_addresses_the_same_memory(data):
    """A box held with a margin on every side: offsets and strides of its own."""
    box = data.draw(boxes())
    part = data.draw(boxes(within=box.shape)).shifted(box.start)
    padded = tuple(n + data.draw(st.integers(0, 2)) for n in box.shape)
    offset = data.draw(st.integers(0, 3))
    memory = np.arange(offset + prod(padded))
    view = View("w", offset, row_major_strides(padded))

    held = memory[offset:].reshape(padded)[tuple(slice(0, n) for n in box.shape)]
    wanted = held[part.relative_to(box).slices]
    inner = view.of(part, box)
    assert inner.name == "w"
    assert (window(memory, inner, part) == wanted).all()


@given(st.data())
def test_a_flat_range_is_cut_exactly_and_in_memory_order(data):
    shape = data.draw(shapes)
    size = prod(shape)
    start, stop = data.draw(st.tuples(st.integers(0, size), st.integers(0, size)))
    found = flat_range_boxes(shape, start, stop)
    flat = np.arange(size).reshape(shape)
    covered = [i for box in found for i in flat[box.slices].flat]
    assert covered == list(range(start, stop)), "each contiguous, none twice, in order"
    assert all(box.num_elements for box in found)
    assert len(found) <= 2 * len(shape) - 1
