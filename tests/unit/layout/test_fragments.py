"""Intersections of shard maps, element by element."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.layout.partitions import pairs
from tests.unit.layout.simulate import logical_values
from verl_hpc.errors import LayoutError
from verl_hpc.layout.box import Box, View
from verl_hpc.layout.fragments import fragments
from verl_hpc.layout.shard_map import Region, RowBlock, ShardMap, TensorSpec, stack_rows, whole


def rows(name, spans, dtype="float32"):
    """A map of one tensor of 8 rows; spans are {rank: (start, stop)}."""
    regions = [
        region
        for rank, (start, stop) in spans.items()
        for region in stack_rows("p", [RowBlock(name, start, stop)], (rank,))
    ]
    return ShardMap({name: TensorSpec((8,), dtype)}, regions)


def vectors(*held, size=8):
    """A map of a vector `w`: (holders, start, stop) of each region."""
    regions = [Region("w", Box((a,), (b,)), who, View("w", 0, (1,))) for who, a, b in held]
    return ShardMap({"w": TensorSpec((size,), "float32")}, regions)


def matrices(*held):
    """A map of a matrix `w` of 4 x 6: (holder, box, name of the parameter, offset) of each."""
    regions = [
        Region("w", box, (rank,), View(name, offset, (box.shape[1], 1)))
        for rank, box, name, offset in held
    ]
    return ShardMap({"w": TensorSpec((4, 6), "float32")}, regions)


@given(pairs(), st.integers(4, 100))
def test_every_target_box_is_covered_once_by_what_lies_inside_both_sides(maps, max_bytes):
    source, target = maps
    values = logical_values(target)
    covered = {id(region): [] for region in target.regions}
    for f in fragments(source, target, max_bytes):
        assert 0 < f.num_bytes == 4 * f.box.num_elements <= max_bytes
        held = [r for r in source.regions if r.tensor == f.tensor and r.box.contains(f.box)]
        assert f.source.holders == held[0].holders, "an element is in one source box"
        for region in f.target.regions:
            assert region.box.contains(f.box)
            covered[id(region)] += values[f.tensor][f.box.slices].ravel().tolist()
    for region in target.regions:
        wanted = values[region.tensor][region.box.slices].ravel().tolist()
        assert sorted(covered[id(region)]) == wanted


def test_bytes_are_those_of_the_targets_type():
    source, target = rows("q", {0: (0, 8)}), rows("q", {1: (0, 8)}, "bfloat16")
    assert [f.num_bytes for f in fragments(source, target, 4096)] == [16]
    assert [f.num_bytes for f in fragments(source, target, 9)] == [8, 8]
    assert [f.num_bytes for f in fragments(source, target, 1)] == [2] * 8


def test_everyone_who_holds_a_part_is_a_source_of_it():
    """Copies of one box and overlapping boxes alike."""
    source = vectors(((0,), 0, 8), ((1,), 0, 4), ((2,), 2, 6), ((3,), 0, 8))
    parts = fragments(source, vectors(((9,), 1, 7)), 4096)
    found = {(f.box.start[0], f.box.stop[0]): f.source.holders for f in parts}
    assert found == {(1, 2): (0, 1, 3), (2, 4): (0, 1, 2, 3), (4, 6): (0, 2, 3), (6, 7): (0, 3)}


def test_two_places_of_one_rank_are_both_filled():
    """Tied embeddings on a rank that is the first and the last stage."""
    source, box = vectors(((0,), 0, 4), size=4), Box((0,), (4,))
    places = [((0, 1), View("embedding", 0, (1,))), ((1,), View("output", 2, (1,)))]
    target = ShardMap(source.tensors, [Region("w", box, who, view) for who, view in places])
    (only,) = fragments(source, target, 4096)
    assert only.target.holders == (0, 1)
    assert [v.name for v in only.target.views(0, box)] == ["embedding"]
    assert [v.name for v in only.target.views(1, box)] == ["embedding", "output"]


def test_sources_of_different_heights():
    """The tall one on the left starts first and ends last."""
    boxes = [Box((0, 0), (4, 3)), Box((0, 3), (2, 6)), Box((2, 3), (4, 6))]
    source = matrices(*((rank, box, "w", 0) for rank, box in enumerate(boxes)))
    target = matrices((5, Box((3, 0), (4, 6)), "w", 0))
    found = {f.source.holders: f.box for f in fragments(source, target, 4096)}
    assert found == {(0,): Box((3, 0), (4, 3)), (2,): Box((3, 3), (4, 6))}


@pytest.mark.parametrize("spans", [{0: (0, 3), 1: (4, 8)}, {}], ids=["a gap", "nobody"])
def test_a_hole_is_named_with_its_tensor(spans):
    with pytest.raises(LayoutError, match=r"^q: elements \(0,\)..\(8,\) have no source; is the"):
        list(fragments(rows("q", spans), rows("q", {0: (0, 8)}), 4096))


def test_a_number_without_dimensions_is_one_box():
    source, target = (
        ShardMap({"beta": TensorSpec((), "float32")}, [whole("beta", "beta", (), ranks)])
        for ranks in ((0, 1), (1, 2))
    )
    (only,) = fragments(source, target, 4096)
    assert (only.source.holders, only.num_bytes) == ((0, 1), 4)


def test_tensors_that_only_the_source_has_are_left_alone():
    source = rows("q", {0: (0, 8)})
    more = ShardMap({**source.tensors, "extra": TensorSpec((3,))}, source.regions)
    assert len(list(fragments(more, rows("q", {1: (0, 8)}), 4096))) == 1
