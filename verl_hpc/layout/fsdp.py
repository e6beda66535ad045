"""Shard map of PyTorch's fully_shard: each rank holds rows of every tensor. With several copies
(HSDP) each group of ranks holds all rows.

A parameter is one tensor of the checkpoint, under its own name. It is cut along its first dimension
as torch.chunk cuts: into shares of equal size, rounded up, so that the last rank that has any rows
may have fewer, and those after it none.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from verl_hpc.errors import LayoutError
from verl_hpc.layout.architecture import Architecture
from verl_hpc.layout.box import Box, View, row_major_strides
from verl_hpc.layout.grid import RankGrid
from verl_hpc.layout.heads import Head, model_tensors
from verl_hpc.layout.megatron import TrainLayout
from verl_hpc.layout.shard_map import Region, ShardMap

ENGINE = "fsdp"
"""Value of `parallel.engine` that selects it."""


def kept_dtype(dtype: str, trainable: bool) -> str:
    """Element type of a rank's rows: float32 where they are trained, whose rounded copies compute
    in `dtype`."""
    return "float32" if trainable else dtype


def rows_of(num_rows: int, num_ranks: int) -> list[range]:
    """Rows of a tensor that each of the ranks holds.

    13 rows, and 10, on 8 ranks::

        rank       0     1     2     3     4      5      6    7
        13 rows   0-1   2-3   4-5   6-7   8-9   10-11   12    -
        10 rows   0-1   2-3   4-5   6-7   8-9     -      -    -
    """
    share = -(-num_rows // num_ranks)
    bounds = [min(rank * share, num_rows) for rank in range(num_ranks + 1)]
    return [range(*pair) for pair in pairwise(bounds)]


def check_fsdp_layout(arch: Architecture, layout: TrainLayout) -> None:
    """Refuse layouts that do more than shard whole layers over all ranks.

    Raises:
        LayoutError: naming the setting.
    """
    for name, size in layout.sizes_of_model.items():
        if size > 1:
            raise LayoutError(
                f"{name} = {size} with engine = {ENGINE}, which shards parameters over all ranks "
                "and nothing else; leave it out, or choose engine: megatron"
            )
    if arch.is_moe:
        raise LayoutError(
            f"engine = {ENGINE} with a mixture of experts ({arch.family}), whose experts "
            "transformers stacks in one tensor; choose engine: megatron"
        )


def fsdp_shard_map(
    arch: Architecture,
    layout: TrainLayout,
    *,
    head: Head = "language_model",
    dtype: str | None = None,
) -> ShardMap:
    """Shard map of a model whose parameters fully_shard has cut over the ranks of a layout.

    A vocabulary of 1,001 rows on dp=8: rank 0 holds rows 0-125 of model.embed_tokens.weight, and so
    on to rank 7 with rows 882-1000, which are 119. A value head has one row: rank 0 holds it. With
    shard_size=4 ranks 0 and 4 both hold rows 0-250, and the value head's.

    Args:
        arch: the model.
        layout: its ranks; every size but dp is 1.
        head: the output layer.
        dtype: element type of the parameters; the architecture's own if None.

    Raises:
        LayoutError: another size, or a mixture of experts.
    """
    check_fsdp_layout(arch, layout)
    tensors = model_tensors(arch, head, dtype)
    regions = [
        region
        for name, spec in tensors.items()
        for region in _regions(name, spec.shape, layout.shard_grid)
    ]
    return ShardMap(tensors, regions)


def _regions(name: str, shape: tuple[int, ...], grid: RankGrid) -> Iterator[Region]:
    strides, rest = row_major_strides(shape), shape[1:]
    for shard, rows in enumerate(rows_of(shape[0], grid.axis_size("shard"))):
        if rows:
            box = Box((rows.start, *(0 for _ in rest)), (rows.stop, *rest))
            yield Region(name, box, grid.ranks(shard=shard), View(name, 0, strides))
