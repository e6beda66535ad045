"""Tensors as tiles: blocks of at most a mebibyte, each of which a file holds in one piece.

Tiles are HDF5's chunks: of one shape, in row-major order, and whole at the tensor's edges, too. A
few rows of a part of the columns, so that a slice of either is read without the rest, and without
small reads.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from math import prod

import torch

TILE_BYTES = 1 << 20
_COLUMN_PARTS = 8
"""As many as the ranks of one node that share a matrix."""
_LEAST_ROW_BYTES = 2048
"""Shorter rows would cost more to copy than is saved by not reading their neighbours."""


def tile_shape(shape: Sequence[int], item_bytes: int) -> tuple[int, ...]:
    """The shape of a tensor's tiles, as even as can be: little is lost at the edges.

    Args:
        shape: of the tensor; at least one dim.
        item_bytes: of an element.
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
    """Along every dim."""
    return tuple(-(-size // t) for size, t in zip(shape, tile, strict=True))


def pack(tensor: torch.Tensor, tile: Sequence[int], out: torch.Tensor) -> None:
    """Copy a tensor tile by tile; a GPU's copies may be under way on return.

    Args:
        tensor: of any strides.
        tile: shape of the tiles.
        out: flat, contiguous, of the tensor's type; zeros, of which those beyond the tensor's
            edges are left as they are.
    """
    dims = len(tile)
    target = out.view(*num_tiles(tensor.shape, tile), *tile)
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
    """Of a dim: whole tiles, and then the rest."""
    whole, rest = divmod(size, tile)
    if whole:
        yield _Run(0, whole, tile, 0)
    if rest:
        yield _Run(whole, 1, rest, whole * tile)
