"""Split tensors into tiles: blocks of at most a mebibyte, contiguous in a file.

Tiles are HDF5's chunks: of one shape, in row-major order, padded at the tensor's edges. A tile has
a few rows of a part of the columns, so that a slice of rows or columns is read without the rest,
and without small reads.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from math import prod

import torch

TILE_BYTES = 1 << 20
_COLUMN_PARTS = 8
"""Parts of the columns: the usual number of ranks of a node that share a matrix."""
_LEAST_ROW_BYTES = 2048
"""Shortest row of a tile: copying shorter rows would cost more than reading less saves."""


def tile_shape(shape: Sequence[int], item_bytes: int) -> tuple[int, ...]:
    """Return the shape of a tensor's tiles, of nearly equal size, so that little padding is needed.

    Args:
        shape: the tensor's shape.
        item_bytes: bytes of an element.
    """
    room = TILE_BYTES // item_bytes
    tile: list[int] = []
    for dim, size in reversed(list(enumerate(shape))):
        most = max(room // prod(tile), 1)
        if dim == len(shape) - 1 > 0:
            most = min(most, max(-(-size // _COLUMN_PARTS), _LEAST_ROW_BYTES // item_bytes))
        num_tiles = max(-(-size // most), 1)
        tile.insert(0, max(-(-size // num_tiles), 1))
    return tuple(tile)


def num_tiles(shape: Sequence[int], tile: Sequence[int]) -> tuple[int, ...]:
    """Return the number of tiles along every dim."""
    return tuple(-(-size // t) for size, t in zip(shape, tile, strict=True))


def pack(tensor: torch.Tensor, tile: Sequence[int], out: torch.Tensor) -> None:
    """Copy a tensor tile by tile; copies from a GPU may still be running on return.

    Args:
        tensor: a tensor of any strides.
        tile: shape of the tiles.
        out: flat, contiguous, of the tensor's type; padding beyond the tensor's edges is not
            written, so it must be zero.
    """
    dims = len(tile)
    target = out.view((*num_tiles(tensor.shape, tile), *tile))
    for runs in product(*map(_runs, tensor.shape, tile)):
        source = tensor[tuple(slice(r.start, r.stop) for r in runs)]
        source = source.view([n for r in runs for n in (r.count, r.length)])
        source = source.permute([*range(0, 2 * dims, 2), *range(1, 2 * dims, 2)])
        places = [slice(r.first, r.first + r.count) for r in runs]
        inside = [slice(r.length) for r in runs]
        target[(*places, *inside)].copy_(source, non_blocking=tensor.is_cuda)


class _Run:
    """Neighbouring tiles of one length along a dim."""

    def __init__(self, first: int, count: int, length: int, start: int) -> None:
        self.first, self.count, self.length = first, count, length
        self.start, self.stop = start, start + count * length


def _runs(size: int, tile: int) -> Iterator[_Run]:
    """Yield the runs of a dim: the full tiles, then the remainder."""
    whole, rest = divmod(size, tile)
    if whole:
        yield _Run(0, whole, tile, 0)
    if rest:
        yield _Run(whole, 1, rest, whole * tile)
