"""Intersections of shard maps, element by element."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.layout.partitions import pairs
from tests.unit.layout.simulate import logical_values
from verl_hpc.errors import LayoutError
from verl_hpc.layout.box import Box, View
from verl_hpc.layout.fragments import fragments
from verl_hpc.layout.shard_map import Region, RowBlock, ShardMap, TensorSpec, stack_rows


def rows(name, spans, dtype="float32"):
    """A map of one tensor of 8 rows; spans are {rank: (start, stop)}."""
    regions = [
        region
        for rank, (start, stop) in spans.items()
        for region in stack_rows("p", [RowBlock(name, start, stop)], (rank,))
    ]
    return ShardMap({name: TensorSpec((8,), dtype)}, regions)


def test_the_docstrings_rows():
    source = rows("q", {0: (0, 2), 1: (2, 4), 2: (4, 6), 3: (6, 8)})
    target = rows("q", {0: (0, 4), 1: (4, 8)})
    found = [
        (f.box.start[0], f.box.stop[0], f.source.holders, f.target.holders)
        for f in fragments(source, target, 4096)
    ]
    assert found == [(0, 2, (0,), (0,)), (2, 4, (1,), (0,)), (4, 6, (2,), (1,)), (6, 8, (3,), (1,))]


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


def test_a_fragment_knows_where_it_lies_on_both_sides():
    spec = {"w": TensorSpec((4, 6), "float32")}
    left, right = Box((0, 0), (4, 3)), Box((0, 3), (4, 6))
    source = ShardMap(
        spec,
        [
            Region("w", left, (0,), View("left", 5, (3, 1))),
            Region("w", right, (1,), View("right", 0, (3, 1))),
        ],
    )
    middle = Box((1, 2), (3, 5))
    target = ShardMap(spec, [Region("w", middle, (2,), View("middle", 7, (3, 1)))])
    first, second = fragments(source, target, 4096)
    assert first.box == Box((1, 2), (3, 3))
    assert first.source.views(0, first.box) == (View("left", 5 + 3 + 2, (3, 1)),)
    assert first.target.views(2, first.box) == (View("middle", 7, (3, 1)),)
    assert second.source.views(1, second.box) == (View("right", 3, (3, 1)),)
    assert second.target.views(2, second.box) == (View("middle", 8, (3, 1)),)
    assert first.source.views(1, first.box) == ()


def test_everyone_who_holds_a_part_is_a_source_of_it():
    """Copies of one box and overlapping boxes alike."""
    spec = {"w": TensorSpec((8,), "float32")}
    spans = [(0, (0, 8)), (1, (0, 4)), (2, (2, 6)), (3, (0, 8))]
    source = ShardMap(
        spec, [Region("w", Box((a,), (b,)), (rank,), View("w", 0, (1,))) for rank, (a, b) in spans]
    )
    target = ShardMap(spec, [Region("w", Box((1,), (7,)), (9,), View("w", 0, (1,)))])
    found = {
        (f.box.start[0], f.box.stop[0]): f.source.holders for f in fragments(source, target, 4096)
    }
    assert found == {(1, 2): (0, 1, 3), (2, 4): (0, 1, 2, 3), (4, 6): (0, 2, 3), (6, 7): (0, 3)}


def test_two_places_of_one_rank_are_both_filled():
    """Tied embeddings on a rank that is the first and the last stage."""
    spec = {"w": TensorSpec((4,), "float32")}
    box = Box((0,), (4,))
    source = ShardMap(spec, [Region("w", box, (0,), View("w", 0, (1,)))])
    target = ShardMap(
        spec,
        [
            Region("w", box, (0, 1), View("embedding", 0, (1,))),
            Region("w", box, (1,), View("output", 2, (1,))),
        ],
    )
    (only,) = fragments(source, target, 4096)
    assert only.target.holders == (0, 1)
    assert [v.name for v in only.target.views(0, box)] == ["embedding"]
    assert [v.name for v in only.target.views(1, box)] == ["embedding", "output"]


def test_sources_of_different_heights():
    """The tall one on the left starts first and ends last."""
    spec = {"w": TensorSpec((4, 6), "float32")}
    boxes = [Box((0, 0), (4, 3)), Box((0, 3), (2, 6)), Box((2, 3), (4, 6))]
    source = ShardMap(
        spec, [Region("w", b, (i,), View("w", 0, (3, 1))) for i, b in enumerate(boxes)]
    )
    target = ShardMap(spec, [Region("w", Box((3, 0), (4, 6)), (5,), View("w", 0, (6, 1)))])
    found = {f.source.holders: f.box for f in fragments(source, target, 4096)}
    assert found == {(0,): Box((3, 0), (4, 3)), (2,): Box((3, 3), (4, 6))}


def test_a_hole_is_named_with_its_tensor():
    with pytest.raises(LayoutError, match=r"^q: elements \(0,\)..\(8,\) have no source; is the"):
        list(fragments(rows("q", {0: (0, 3), 1: (4, 8)}), rows("q", {0: (0, 8)}), 4096))


def test_a_tensor_that_nobody_holds_is_a_hole():
    empty = ShardMap({"q": TensorSpec((8,), "float32")}, [])
    with pytest.raises(LayoutError, match=r"^q: elements .* have no source"):
        list(fragments(empty, rows("q", {0: (0, 8)}), 4096))


def test_tensors_that_only_the_source_has_are_left_alone():
    source = rows("q", {0: (0, 8)})
    more = ShardMap({**source.tensors, "extra": TensorSpec((3,))}, source.regions)
    assert len(list(fragments(more, rows("q", {1: (0, 8)}), 4096))) == 1
