"""Shard map of PyTorch's fully_shard: each rank holds rows of every tensor. With several copies
(HSDP) each group of ranks holds all rows.

A parameter is cut along its first dimension as torch.chunk cuts: into shares of equal size, rounded
up, so that the last rank that has any rows may have fewer, and those after it none. It is one
tensor of the checkpoint, or has several of them in it, such as all experts of a layer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise

from verl_hpc.errors import LayoutError
from verl_hpc.layout.architecture import Architecture
from verl_hpc.layout.box import Box, View, row_major_strides
from verl_hpc.layout.grid import RankGrid
from verl_hpc.layout.heads import HEAD_TENSORS, Head, model_tensors
from verl_hpc.layout.megatron import TrainLayout
from verl_hpc.layout.shard_map import Region, ShardMap, TensorSpec

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


@dataclass(frozen=True, slots=True)
class Place:
    """Where a tensor of a checkpoint lies in a parameter, or in a buffer that every rank has.

    Args:
        view: place in the whole parameter.
        num_rows: size of the parameter's first dimension; 0 for a buffer, which is not cut.
        row_size: elements of one of its rows.
    """

    view: View
    num_rows: int = 0
    row_size: int = 1

    @classmethod
    def of_parameter(cls, name: str, shape: tuple[int, ...]) -> Place:
        """The place of a tensor that is a parameter of its own."""
        strides = row_major_strides(shape)
        return cls(View(name, 0, strides), shape[0], strides[0])

    def within(self, shape: tuple[int, ...], rows: range) -> Box | None:
        """The part of a tensor of this shape that lies in some rows of the parameter.

        Expert 5 of 8, stacked along the first dimension, is all in row 5; rows 0-2 of a tensor that
        is the second of three blocks of 4 rows are rows 4-6 of the parameter.
        """
        first = self.view.offset // self.row_size
        start, stop = [0] * len(shape), list(shape)
        for dim, (size, stride) in enumerate(zip(shape, self.view.strides, strict=True)):
            if size > 1 and stride >= self.row_size:
                step = stride // self.row_size
                start[dim] = min(max(-((first - rows.start) // step), 0), size)
                stop[dim] = min(max(-((first - rows.stop) // step), 0), size)
                return Box(tuple(start), tuple(stop)) if start[dim] < stop[dim] else None
        return Box.whole(shape) if first in rows else None


def check_fsdp_layout(arch: Architecture, layout: TrainLayout) -> None:
    """Refuse layouts that do more than shard whole layers over all ranks.

    Raises:
        LayoutError: naming the setting.
    """
    for name, size in layout.sizes_of_model.items():
        if size > 1:
            raise LayoutError(
                f"{name} = {size} with engine = {ENGINE}, which shards parameters over all ranks "
                f"and nothing else; leave it out{', or choose engine: megatron' * arch.is_mapped}"
            )
    assert not arch.is_moe, "transformers stacks experts, so that mixtures train by names"


def fsdp_shard_map(
    arch: Architecture,
    layout: TrainLayout,
    *,
    head: Head = "language_model",
    dtype: str | None = None,
    head_dtype: str | None = None,
    places: Mapping[str, Place] | None = None,
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
        head_dtype: that of a one-number head, which is trained beside adapters; `dtype` if None.
        places: where its tensors lie, for a family without a layer table; each is taken for a
            parameter of its own if None, which gives the same number of bytes.

    Raises:
        LayoutError: another size.
    """
    check_fsdp_layout(arch, layout)
    tensors = model_tensors(arch, head, dtype)
    if head in HEAD_TENSORS and head_dtype is not None:
        name = HEAD_TENSORS[head]
        tensors[name] = TensorSpec(tensors[name].shape, head_dtype)
    if places is not None:  # files may have an output layer that another head takes the place of
        tensors = {name: spec for name, spec in tensors.items() if name in places}
    return rows_map(tensors, layout, places)


def rows_map(
    tensors: Mapping[str, TensorSpec],
    layout: TrainLayout,
    places: Mapping[str, Place] | None = None,
) -> ShardMap:
    """Map of tensors that are cut over the ranks of a layout by rows; each is taken for a parameter
    of its own where `places` does not say in which it lies."""
    regions = [
        region
        for name, spec in tensors.items()
        for region in _regions(
            name,
            spec.shape,
            places[name] if places else Place.of_parameter(name, spec.shape),
            layout.shard_grid,
        )
    ]
    return ShardMap(tensors, regions)


def _regions(name: str, shape: tuple[int, ...], place: Place, grid: RankGrid) -> Iterator[Region]:
    if not place.num_rows:
        yield Region(name, Box.whole(shape), grid.ranks(), place.view)
        return
    for shard, rows in enumerate(rows_of(place.num_rows, grid.axis_size("shard"))):
        box = place.within(shape, rows) if rows else None
        if box is not None:
            view = place.view.of(box, Box.whole(shape))
            offset = view.offset - rows.start * place.row_size
            yield Region(name, box, grid.ranks(shard=shard), View(view.name, offset, view.strides))
