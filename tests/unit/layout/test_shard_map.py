"""Regions and the helpers that layouts are written with."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.layout.simulate import filled_memory, logical_values
from verl_hpc.layout.box import Box, View
from verl_hpc.layout.shard_map import (
    ITEM_BYTES,
    Region,
    RowBlock,
    ShardMap,
    TensorSpec,
    columns,
    shard_sizes,
    slice_blocks,
    stack_rows,
    union,
    whole,
)

SPECS = {"a": TensorSpec((8, 3), "float32"), "b": TensorSpec((4, 3), "float32")}


@pytest.mark.parametrize("dtype", ITEM_BYTES)
def test_item_sizes_are_torchs(dtype):
    import torch

    assert ITEM_BYTES[dtype] == getattr(torch, dtype).itemsize
    assert TensorSpec((3, 5), dtype).num_bytes == 15 * ITEM_BYTES[dtype]


@given(st.data())
def test_slicing_blocks_is_slicing_the_stacked_rows(data):
    lengths = st.tuples(st.sampled_from("ab"), st.integers(0, 9), st.integers(0, 5))
    blocks = [RowBlock(t, a, a + n) for t, a, n in data.draw(st.lists(lengths, max_size=6))]
    rows = [(b.tensor, i) for b in blocks for i in range(b.start, b.stop)]
    start, stop = sorted(data.draw(st.tuples(*[st.integers(0, len(rows))] * 2)))
    cut = list(slice_blocks(blocks, start, stop))
    assert [(b.tensor, i) for b in cut for i in range(b.start, b.stop)] == rows[start:stop]
    assert all(b.start < b.stop for b in cut)


def test_stacked_rows_lie_one_under_another():
    blocks = [RowBlock("a", 6, 8), RowBlock("b", 0, 1), RowBlock("a", 0, 1)]
    regions = list(stack_rows("fused", blocks, (5,), (3,)))
    values = logical_values(ShardMap(SPECS, regions))
    expected = np.concatenate([values["a"][6:8], values["b"][:1], values["a"][:1]])
    assert (filled_memory(ShardMap(SPECS, regions))[5]["fused"] == expected.ravel()).all()


def test_stacked_biases_and_an_offset():
    specs = {"q": TensorSpec((4,)), "k": TensorSpec((2,))}
    blocks = [RowBlock("q", 2, 4), RowBlock("k", 1, 2)]
    shard_map = ShardMap(specs, list(stack_rows("bias", blocks, (0,), offset=10)))
    assert filled_memory(shard_map)[0]["bias"].tolist() == [-1] * 10 + [2, 3, 5]


def test_columns_are_a_contiguous_matrix_and_a_whole_tensor_keeps_its_order():
    regions = [columns("down", "a", 8, 1, 3, (0,)), whole("copy", "b", (4, 3), (0, 2))]
    shard_map = ShardMap(SPECS, regions)
    memory, values = filled_memory(shard_map), logical_values(shard_map)
    assert (memory[0]["down"] == values["a"][:, 1:3].ravel()).all()
    assert all((memory[rank]["copy"] == values["b"].ravel()).all() for rank in (0, 2))


MAP = ShardMap(
    SPECS,
    [
        whole("a", "a", (8, 3), (10, 2)),
        columns("half", "b", 4, 0, 2, (2, "z.h5", "a.h5")),
        whole("b", "b", (4, 3), (2,)),
    ],
)


def test_regions_of_a_holder_and_of_a_tensor():
    assert MAP.holders == (2, 10, "a.h5", "z.h5"), "ranks, then files, in order"
    assert [r.view.name for r in MAP.held_by(2)] == ["a", "half", "b"]
    assert [r.view.name for r in MAP.held_by("a.h5")] == ["half"]
    assert MAP.held_by(3) == []
    assert [r.view.name for r in MAP.by_tensor["b"]] == ["half", "b"]
    assert ShardMap(SPECS, []).by_tensor == {"a": [], "b": []}


def test_bytes_of_the_model_count_each_tensor_once_and_those_of_a_holder_every_view():
    assert MAP.num_bytes == 4 * (24 + 12)
    assert dict(shard_sizes(MAP)) == {10: 96, 2: 96 + 32 + 48, "a.h5": 32, "z.h5": 32}


def test_restriction_keeps_the_named_tensors():
    part = MAP.restricted_to(["b"])
    assert list(part.tensors) == ["b"]
    assert [r.view.name for r in part.regions] == ["half", "b"]


def test_a_union_holds_what_each_map_holds():
    more = ShardMap(
        {"b": SPECS["b"], "c": TensorSpec((2,))},
        [Region("c", Box((0,), (2,)), (1,), View("c", 0, (1,)))],
    )
    joined = union([MAP, more])
    assert list(joined.tensors) == ["a", "b", "c"]
    assert joined.regions == [*MAP.regions, *more.regions]
    with pytest.raises(AssertionError):
        union([MAP, ShardMap({"a": TensorSpec((8, 4))}, [])])
