"""Tensors as datasets of HDF5 files, checksummed chunk by chunk, and read with suspicion.

HDF5's own filter fletcher32 lets chunks of zeros pass, which is what a crash may leave of a file.
So every dataset has an attribute with the xxh3 of each chunk.

A file may come from an untrusted source. Only datasets of the named file itself are read: no links
into others, no storage elsewhere, and not more bytes than the file has.
"""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path

import h5py
import numpy as np
import torch
import xxhash

from verl_hpc.checkpoint import schema
from verl_hpc.layout.box import Box
from verl_hpc.layout.shard_map import dtype_name

_CHUNK_BYTES = 1 << 20
_SUMS = "xxh3_64"


def open_file(path: Path) -> h5py.File:
    """Open a regular file to read.

    Raises:
        OSError: it is not there, or no HDF5.
        ValueError: it is a link, a pipe or a device.
    """
    if not stat.S_ISREG(path.lstat().st_mode):
        raise ValueError("not a regular file")
    return h5py.File(path, "r", locking=False)


def write_dataset(file: h5py.File, name: str, tensor: torch.Tensor) -> None:
    """Write a tensor of at least one dimension.

    Raises:
        OSError: it cannot be written.
    """
    stored = schema.to_stored(tensor)
    chunks = _chunks(stored) if stored.size else None
    dataset = file.create_dataset(
        name, data=stored, chunks=chunks, fletcher32=True if chunks else None
    )
    dataset.attrs[schema.DTYPE_ATTRIBUTE] = dtype_name(tensor.dtype)
    if chunks:
        starts = range(0, stored.shape[0], chunks[0])
        sums = [_sum_of(stored[start : start + chunks[0]]) for start in starts]
        dataset.attrs[_SUMS] = np.array(sums, np.uint64)


def read_dataset(file: h5py.File, name: str, box: Box | None = None) -> torch.Tensor:
    """A part of a dataset, or all of it; every chunk that it touches is checked.

    Raises:
        KeyError, ValueError, OSError, RuntimeError: it is not there, or not as it was written.
    """
    dataset = plain_dataset(file, name)
    window = Box.whole(dataset.shape) if box is None else box
    if len(window.start) != len(dataset.shape) or not Box.whole(dataset.shape).contains(window):
        raise ValueError(f"{name} has shape {dataset.shape}, and {window} is to be read")
    dtype = schema.DTYPES[dataset.attrs[schema.DTYPE_ATTRIBUTE]]
    if dataset.dtype != schema.stored_dtype(dtype):
        raise ValueError(f"{name} has elements of {dataset.dtype}, meant to be {dtype}")
    array = np.empty(window.shape, dataset.dtype)
    if array.size:
        for start, chunk in _sound_chunks(dataset, window.start[0], window.stop[0]):
            low, high = max(start, window.start[0]), min(start + len(chunk), window.stop[0])
            inside = (slice(low - start, high - start), *window.slices[1:])
            array[low - window.start[0] : high - window.start[0]] = chunk[inside]
    return schema.from_stored(array, dtype)


def dataset_names(file: h5py.File, group: str) -> list[str]:
    """Names below a group of this very file; none if there is no such group."""
    if not file.id.links.exists(group.encode()):
        return []
    _check_links(file, group)
    return list(file[group])


def plain_dataset(file: h5py.File, name: str) -> h5py.Dataset:
    """A dataset whose bytes are all in this file.

    Raises:
        KeyError: there is none.
        ValueError: it is elsewhere, compressed, virtual, or larger than the file.
    """
    _check_links(file, name)
    dataset = file[name]
    if not isinstance(dataset, h5py.Dataset):
        raise KeyError(f"{name} is not a dataset")
    if dataset.is_virtual or dataset.external:
        raise ValueError(f"the data of {name} is somewhere else")
    plan = dataset.id.get_create_plist()
    if {plan.get_filter(i)[0] for i in range(plan.get_nfilters())} - {h5py.h5z.FILTER_FLETCHER32}:
        raise ValueError(f"{name} has other filters than checksums")
    if dataset.nbytes > file.id.get_filesize():
        raise ValueError(f"{name} means {dataset.nbytes} bytes, more than the file has")
    return dataset


def _check_links(file: h5py.File, name: str) -> None:
    """Every step of a path stays in the file."""
    parts = name.strip("/").split("/")
    for depth in range(1, len(parts) + 1):
        path = "/".join(parts[:depth])
        if file.id.links.get_info(path.encode()).type != h5py.h5l.TYPE_HARD:
            raise ValueError(f"{path} is a link to somewhere else")


def _sound_chunks(dataset: h5py.Dataset, start: int, stop: int) -> Iterator[tuple[int, np.ndarray]]:
    """The chunks with rows from `start` to `stop`, each with the row it begins at."""
    if dataset.chunks is None or dataset.chunks[1:] != dataset.shape[1:]:
        raise ValueError(f"{dataset.name} has chunks {dataset.chunks}, not of whole rows")
    rows, sums = dataset.chunks[0], dataset.attrs[_SUMS]
    for first in range(start - start % rows, stop, rows):
        chunk = dataset[first : first + rows]
        if _sum_of(chunk) != sums[first // rows]:
            raise ValueError(f"{dataset.name} has another checksum than what was written")
        yield first, chunk


def _sum_of(array: np.ndarray) -> int:
    return int(xxhash.xxh3_64_intdigest(array.data))


def _chunks(array: np.ndarray) -> tuple[int, ...]:
    """Whole rows, about a mebibyte together: reads of any other layout touch few chunks."""
    row = array.itemsize * int(np.prod(array.shape[1:], dtype=np.int64))
    return (max(min(_CHUNK_BYTES // max(row, 1), array.shape[0]), 1), *array.shape[1:])
