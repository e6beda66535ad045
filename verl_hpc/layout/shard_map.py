"""Shard maps: which rank holds which box of which logical tensor, and where in its memory.

A shard map is pure data and a function of configuration alone, so every rank computes the whole
of it without communication. Ranks that hold the same box at the same place of their memory (the
replicas of a data-parallel group) share one `Region`, so a map grows with the number of distinct
shards, not with the number of ranks.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from verl_hpc.layout.box import Box, View, row_major_strides

Holder = int | str
"""A rank, or the path of a file."""

ITEM_BYTES: Mapping[str, int] = {
    "float64": 8,
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "int64": 8,
    "int32": 4,
    "int16": 2,
    "int8": 1,
    "uint8": 1,
    "bool": 1,
}


def dtype_name(dtype: object) -> str:
    """The name of a torch.dtype as in ITEM_BYTES: torch.bfloat16 gives "bfloat16"."""
    return str(dtype).removeprefix("torch.")


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Global shape and element type of a logical tensor, named as in the HF checkpoint."""

    shape: tuple[int, ...]
    dtype: str = "bfloat16"

    @property
    def num_bytes(self) -> int:
        return Box.whole(self.shape).num_elements * ITEM_BYTES[self.dtype]


@dataclass(frozen=True, slots=True)
class Region:
    """`box` of the logical tensor `tensor` is held by every one of `holders`, at `view`."""

    tensor: str
    box: Box
    holders: tuple[Holder, ...]
    view: View


@dataclass(frozen=True)
class ShardMap:
    """All regions of one layout.

    Two regions may hold the same box (tied embeddings are two views of one tensor; replicas are
    several holders of one region).
    """

    tensors: Mapping[str, TensorSpec]
    regions: Sequence[Region] = field(repr=False)

    @cached_property
    def by_tensor(self) -> Mapping[str, list[Region]]:
        grouped: dict[str, list[Region]] = {name: [] for name in self.tensors}
        for region in self.regions:
            grouped[region.tensor].append(region)
        return grouped

    def held_by(self, holder: Holder) -> list[Region]:
        """Regions of one holder, in the map's order."""
        return [region for region in self.regions if holder in region.holders]

    @cached_property
    def holders(self) -> tuple[Holder, ...]:
        """Every holder, ascending; ranks before files."""
        found = {h for holders in {r.holders for r in self.regions} for h in holders}
        return tuple(sorted(found, key=lambda h: (isinstance(h, str), h)))

    @cached_property
    def num_bytes(self) -> int:
        """Bytes of all logical tensors, each once."""
        return sum(spec.num_bytes for spec in self.tensors.values())

    def restricted_to(self, names: Iterable[str]) -> ShardMap:
        """The part of the map for the tensors in `names`, in their order."""
        kept = {name: self.tensors[name] for name in names}
        return ShardMap(kept, [region for name in kept for region in self.by_tensor[name]])


@dataclass(frozen=True, slots=True)
class RowBlock:
    """Rows `[start, stop)` of a logical tensor, as one block of a fused local matrix."""

    tensor: str
    start: int
    stop: int


def slice_blocks(blocks: Iterable[RowBlock], start: int, stop: int) -> Iterator[RowBlock]:
    """Rows `[start, stop)` of the matrix that stacks `blocks` one under another.

    Blocks a:0-4, b:0-2, a:4-8 cut to rows [3, 7) give a:3-4, b:0-2, a:4-5.
    """
    position = 0
    for block in blocks:
        length = block.stop - block.start
        low = max(start - position, 0)
        high = min(stop - position, length)
        if low < high:
            yield RowBlock(block.tensor, block.start + low, block.start + high)
        position += length


def stack_rows(
    name: str,
    blocks: Iterable[RowBlock],
    holders: tuple[Holder, ...],
    row_shape: tuple[int, ...] = (),
    offset: int = 0,
) -> Iterator[Region]:
    """Regions of the local tensor `name`, whose rows are `blocks` one under another.

    `row_shape` is the shape of one row: (hidden,) for a weight, () for a bias. `offset` is where
    the first block starts, in elements.
    """
    strides = row_major_strides((1, *row_shape))
    for block in blocks:
        box = Box((block.start, *(0 for _ in row_shape)), (block.stop, *row_shape))
        yield Region(block.tensor, box, holders, View(name, offset, strides))
        offset += (block.stop - block.start) * strides[0]


def padded_rows(
    name: str,
    tensor: str,
    shape: tuple[int, int],
    num_rows: int,
    shards: Sequence[tuple[Holder, ...]],
) -> Iterator[Region]:
    """Equal shares of a matrix of `shape` that is padded to `num_rows` rows.

    A shard of padding alone has no region: 5 rows padded to 8 are, over 4 shards, rows 0-1, 2-3
    and 4.
    """
    share = num_rows // len(shards)
    for t, holders in enumerate(shards):
        block = RowBlock(tensor, min(t * share, shape[0]), min((t + 1) * share, shape[0]))
        if block.start < block.stop:
            yield from stack_rows(name, [block], holders, shape[1:])


def columns(
    name: str,
    tensor: str,
    num_rows: int,
    start: int,
    stop: int,
    holders: tuple[Holder, ...],
    offset: int = 0,
) -> Region:
    """Columns `[start, stop)` of a matrix of `num_rows` rows, held as a contiguous matrix.

    `offset` is where the matrix starts in the local tensor `name`, in elements.
    """
    box = Box((0, start), (num_rows, stop))
    return Region(tensor, box, holders, View(name, offset, (stop - start, 1)))


def whole(name: str, tensor: str, shape: tuple[int, ...], holders: tuple[Holder, ...]) -> Region:
    """A whole logical tensor, held as a contiguous tensor of the same shape."""
    return Region(tensor, Box.whole(shape), holders, View(name, 0, row_major_strides(shape)))


def union(maps: Iterable[ShardMap]) -> ShardMap:
    """One map that holds what each of `maps` holds; their tensors must agree where they meet."""
    tensors: dict[str, TensorSpec] = {}
    regions: list[Region] = []
    for shard_map in maps:
        for name, spec in shard_map.tensors.items():
            known = tensors.setdefault(name, spec)
            assert known == spec, (name, known, spec)
        regions += shard_map.regions
    return ShardMap(tensors, regions)


def shard_sizes(shard_map: ShardMap) -> Mapping[Holder, int]:
    """Bytes each holder's regions take, replicas and second views counted."""
    total: dict[Holder, int] = defaultdict(int)
    for region in shard_map.regions:
        size = region.box.num_elements * ITEM_BYTES[shard_map.tensors[region.tensor].dtype]
        for holder in region.holders:
            total[holder] += size
    return total
