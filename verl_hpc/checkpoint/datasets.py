"""Read tensors of untrusted HDF5 files (`tensor_file`), checking each tile's checksum.

Only datasets in the named file itself are read: no links into others, no external storage, and not
more bytes than the file has.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from itertools import product
from math import prod
from operator import add, floordiv, mul
from pathlib import Path

import h5py
import numpy as np
import torch
import xxhash

from verl_hpc.checkpoint import schema
from verl_hpc.checkpoint.tiles import num_tiles
from verl_hpc.layout.box import Box

_AHEAD = 8
"""Number of tiles to prefetch, each of at most a mebibyte."""


def open_file(path: Path) -> h5py.File:
    """Open a regular HDF5 file for reading.

    Raises:
        OSError: it does not exist, or is not HDF5.
        ValueError: it is a link, a pipe or a device.
    """
    if not stat.S_ISREG(path.lstat().st_mode):
        raise ValueError("not a regular file")
    return h5py.File(path, "r", locking=False)


def read_dataset(file: h5py.File, name: str, box: Box | None = None) -> torch.Tensor:
    """Read a box of a dataset, or all of it, checking every tile that it touches.

    Raises:
        KeyError, ValueError, OSError, RuntimeError: it is missing or damaged.
    """
    if box == Box((), ()):
        return read_dataset(file, name, Box((0,), (1,))).view(())
    dataset = plain_dataset(file, name)
    window = Box.whole(dataset.shape) if box is None else box
    if len(window.start) != len(dataset.shape) or not Box.whole(dataset.shape).contains(window):
        raise ValueError(f"cannot read {window} of {name}, whose shape is {dataset.shape}")
    dtype = schema.DTYPES[dataset.attrs[schema.DTYPE_ATTRIBUTE]]
    if dataset.dtype != schema.stored_dtype(dtype):
        raise ValueError(f"{name} has elements of {dataset.dtype}, meant to be {dtype}")
    array = np.empty(window.shape, dataset.dtype)
    if array.size:
        for place, tile in _sound_tiles(file, dataset, window):
            part = place.intersect(window)
            assert part is not None
            array[part.relative_to(window).slices] = tile[part.relative_to(place).slices]
    return schema.from_stored(array, dtype)


def dataset_names(file: h5py.File, group: str) -> list[str]:
    """Return the names below a group of this file; empty without such a group."""
    if not file.id.links.exists(group.encode()):
        return []
    _check_links(file, group)
    return list(file[group])


def plain_dataset(file: h5py.File, name: str) -> h5py.Dataset:
    """Return a dataset after checking that all its bytes are in this file.

    Raises:
        KeyError: there is no such dataset.
        ValueError: it is linked, external, compressed, virtual, or larger than the file.
    """
    _check_links(file, name)
    dataset = file[name]
    if not isinstance(dataset, h5py.Dataset):
        raise KeyError(f"{name} is not a dataset")
    if dataset.is_virtual or dataset.external:
        raise ValueError(f"the data of {name} is somewhere else")
    if dataset.id.get_create_plist().get_nfilters():
        raise ValueError(f"{name} is compressed or otherwise filtered")
    num_bytes = max(dataset.nbytes, dataset.dtype.itemsize * prod(dataset.chunks or ()))
    if num_bytes > file.id.get_filesize():
        raise ValueError(f"{name} means {num_bytes} bytes, more than the file has")
    return dataset


def _check_links(file: h5py.File, name: str) -> None:
    """Check that no part of a path is a link out of the file."""
    parts = name.strip("/").split("/")
    for depth in range(1, len(parts) + 1):
        path = "/".join(parts[:depth])
        if file.id.links.get_info(path.encode()).type != h5py.h5l.TYPE_HARD:
            raise ValueError(f"{path} is a link to somewhere else")


def _sound_tiles(
    file: h5py.File, dataset: h5py.Dataset, window: Box
) -> Iterator[tuple[Box, np.ndarray]]:
    """Yield the tiles that a window overlaps, each with its box, after checking them."""
    if dataset.chunks is None:
        raise ValueError(f"{dataset.name} has no chunks")
    sums, tile = _sums(file, dataset), dataset.chunks
    # Tile indices along every dim that the window overlaps.
    ranges = [
        range(a // t, -(-b // t)) for a, b, t in zip(window.start, window.stop, tile, strict=True)
    ]
    grid = num_tiles(dataset.shape, tile)
    starts = [tuple(map(mul, index, tile)) for index in product(*ranges)]
    for number, start in enumerate(starts):
        if number % _AHEAD == 0:
            _fetch(file, dataset, starts[number + _AHEAD if number else 0 : number + 2 * _AHEAD])
        place = Box(start, tuple(map(add, start, tile)))
        _, raw = dataset.id.read_direct_chunk(start)
        data = raw[: place.num_elements * dataset.dtype.itemsize]
        index = np.ravel_multi_index(tuple(map(floordiv, start, tile)), grid)
        if xxhash.xxh3_64_intdigest(data) != sums[index]:
            raise ValueError(f"{dataset.name} has another checksum than what was written")
        yield place, np.frombuffer(data, dataset.dtype).reshape(place.shape)


def _fetch(file: h5py.File, dataset: h5py.Dataset, starts: Sequence[tuple[int, ...]]) -> None:
    """Prefetch tiles that will be read soon, since the system cannot predict a slice's next
    tile."""
    for start in starts:
        place = dataset.id.get_chunk_info_by_coord(start)
        if place.byte_offset is not None:
            handle = file.id.get_vfd_handle()
            os.posix_fadvise(handle, place.byte_offset, place.size, os.POSIX_FADV_WILLNEED)


def _sums(file: h5py.File, dataset: h5py.Dataset) -> np.ndarray:
    """Return the checksums of a dataset's tiles."""
    first = int(dataset.attrs[schema.FIRST_TILE])
    count = prod(num_tiles(dataset.shape, dataset.chunks))
    if first < 0:
        raise ValueError(f"{dataset.name} has no place among the checksums")
    return plain_dataset(file, schema.SUMS)[first : first + count]
