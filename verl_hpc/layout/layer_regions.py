"""Convert rows of a layer table to regions, for the maps of Megatron-core and vLLM."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from verl_hpc.layout.architecture import Architecture
from verl_hpc.layout.box import Box, View
from verl_hpc.layout.layer_table import Row
from verl_hpc.layout.shard_map import Holder, Region, RowBlock, columns, stack_rows

Cut = Callable[[Architecture, Sequence[Row], int, int], Iterator[RowBlock]]
"""The blocks that shard t of n stacks of rows that are fused, from (arch, rows, t, n)."""


def shares(arch: Architecture, rows: Sequence[Row], t: int, n: int) -> Iterator[RowBlock]:
    """An equal share of each tensor; heads that are fewer than shards are on several.

    Shards 0 to 3 of 8 query heads and 2 key heads: q 0-1 and k 0, q 2-3 and k 0, q 4-5 and k 1,
    q 6-7 and k 1. Parts of one tensor begin where the one before ends.
    """
    above: Counter[str] = Counter()
    for row in rows:
        num_rows = arch.shape(row)[0]
        parts = min(n, arch.num_kv_heads) if row.split == "key_value_heads" else n
        part, length = t * parts // n, num_rows // parts
        start = above[row.name] + part * length
        yield RowBlock(row.name, start, start + length)
        above[row.name] += num_rows


def parameter_regions(
    arch: Architecture,
    parameter: str,
    rows: Sequence[Row],
    everyone: tuple[Holder, ...],
    shards: Sequence[tuple[Holder, ...]],
    cut: Cut = shares,
    offset: int = 0,
) -> Iterator[Region]:
    """Regions of one parameter of a layer, names below the layer.

    Args:
        arch: the model.
        parameter: its name.
        rows: what is fused in it.
        everyone: ranks that hold the layer.
        shards: the same ranks by tensor-parallel place.
        cut: what a place stacks.
        offset: where in the parameter the regions start, in elements.
    """
    first, shape = rows[0], arch.shape(rows[0])
    if first.is_stacked:
        alone = [replace(row, is_stacked=False) for row in rows]
        for region in parameter_regions(arch, parameter, alone, everyone, shards, cut, offset):
            yield _stacked(region, first.expert)
        return
    places = [everyone] if first.split == "whole" else shards
    for t, holders in enumerate(places):
        if first.split == "columns":
            width = shape[1] // len(places)
            start, stop = t * width, (t + 1) * width
            yield columns(parameter, first.name, shape[0], start, stop, holders, offset)
        else:
            blocks = cut(arch, rows, t, len(places))
            yield from stack_rows(parameter, blocks, holders, shape[1:], offset)


def _stacked(region: Region, expert: int) -> Region:
    """A region of an expert's tensor, in the tensor of all experts, which has each transposed."""
    box, view = region.box, region.view
    return Region(
        region.tensor,
        Box((expert, *reversed(box.start)), (expert + 1, *reversed(box.stop))),
        region.holders,
        View(view.name, view.offset, (box.num_elements, *reversed(view.strides))),
    )


def placed(regions: Iterable[Region], tensor: str, parameter: str) -> Iterator[Region]:
    """The regions of one layer, given the prefixes of its tensors and of its parameters."""
    for region in regions:
        name, view = f"{parameter}.{region.view.name}", region.view
        yield Region(
            f"{tensor}.{region.tensor}",
            region.box,
            region.holders,
            View(name, view.offset, view.strides),
        )
