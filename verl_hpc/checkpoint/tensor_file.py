"""A file of tensors, which HDF5 lays out once and plain writes fill as often as needed.

The layout needs only names, types and shapes, and is the same at every save of a run. HDF5 makes
it in memory, without the tensors' bytes; a save writes it as it is, with the bytes in their places.
So a save calls no HDF5, whose lock all threads of a process share, and which cannot close a file
whose disk is full.

    <name> ...   (shape)   chunks: tiles; attributes: dtype, first_tile
    xxh3_64      (tiles of all)  uint64: the checksum of each tile
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from pathlib import Path

import h5py
import numpy as np
import torch
import xxhash

from verl_hpc.checkpoint import schema
from verl_hpc.checkpoint.sparse_file import SparseFile
from verl_hpc.checkpoint.tiles import num_tiles, pack, tile_shape
from verl_hpc.layout.shard_map import dtype_name

_PAGE = 4096
_SENT_BYTES = 8 << 20
"""So much is on its way to the disk while the next is summed and copied."""


@dataclass(frozen=True)
class Stored:
    """A tensor of a file, without its elements."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]

    @cached_property
    def tile(self) -> tuple[int, ...]:
        return tile_shape(self.shape, self.dtype.itemsize)

    @cached_property
    def num_tiles(self) -> int:
        return prod(num_tiles(self.shape, self.tile))

    @cached_property
    def tile_bytes(self) -> int:
        return prod(self.tile) * self.dtype.itemsize

    @property
    def num_bytes(self) -> int:
        """In the file: of all tiles, whole at the edges, too."""
        return self.num_tiles * self.tile_bytes

    def pack(self, tensor: torch.Tensor, out: torch.Tensor) -> None:
        """Copy it as the file has it; `out` has `num_bytes` elements of uint8."""
        assert (tensor.dtype, tensor.shape) == (self.dtype, self.shape), self.name
        if self.num_bytes:
            pack(tensor.detach(), self.tile, out.view(self.dtype))


@dataclass
class _Layout:
    """What HDF5 wrote besides the bytes of tensors, and where those belong."""

    pieces: list[tuple[int, bytes]] = field(default_factory=list)
    places: list[int] = field(default_factory=list)
    """By tensor, in bytes from the file's start; the checksums last."""


class TensorFile:
    """Writes files of these tensors.

    Args:
        tensors: what it holds, in this order.
        attributes: of the file.
    """

    def __init__(self, tensors: Sequence[Stored], attributes: Mapping[str, str] = {}) -> None:
        self.tensors = tuple(tensors)
        self._attributes = attributes

    def write(self, path: Path, parts: Iterable[np.ndarray]) -> None:
        """Write a file to disk for good.

        Args:
            path: of the file.
            parts: every tensor as `Stored.pack` gives it, in the order of `tensors`, flat uint8;
                each is asked for once those before it are written.

        Raises:
            OSError: it cannot be written.
        """
        layout = self._layout
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
        try:
            for place, piece in layout.pieces:
                _write_all(descriptor, memoryview(piece), place)
            sums: list[int] = []
            *places, place_of_sums = layout.places
            for stored, place, part in zip(self.tensors, places, parts, strict=True):
                for start in range(0, stored.num_bytes, stored.tile_bytes):
                    tile = part[start : start + stored.tile_bytes].data
                    sums.append(xxhash.xxh3_64_intdigest(tile))
                    _write_all(descriptor, tile, place + start)
                    end = start + stored.tile_bytes
                    if end % _SENT_BYTES < stored.tile_bytes:
                        _send(descriptor, place + end)
            _write_all(descriptor, np.array(sums, np.uint64).view(np.uint8).data, place_of_sums)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    @cached_property
    def _layout(self) -> _Layout:
        found = _Layout()
        raw = SparseFile()
        with raw:
            options = {"alignment_threshold": 1 << 16, "alignment_interval": _PAGE}
            with h5py.File(raw, "w", libver="latest", meta_block_size=1 << 16, **options) as file:
                file.attrs.update(self._attributes)
                num_tiles = 0
                for stored in self.tensors:
                    found.places.append(_create(file, stored, num_tiles))
                    num_tiles += stored.num_tiles
                found.places.append(_create_sums(file, num_tiles))
            sizes = [*(stored.num_bytes for stored in self.tensors), 8 * num_tiles]
            spans = sorted(zip(found.places, sizes, strict=True))
            found.pieces = list(_between(raw, [span for span in spans if span[1]]))
        return found


def _create(file: h5py.File, stored: Stored, first_tile: int) -> int:
    """A dataset whose bytes are written later; where they belong."""
    kind = schema.stored_dtype(stored.dtype)
    plan = _unwritten() if stored.num_bytes else None
    chunks = stored.tile if stored.num_bytes else None
    dataset = file.create_dataset(stored.name, stored.shape, kind, chunks=chunks, dcpl=plan)
    dataset.attrs[schema.DTYPE_ATTRIBUTE] = dtype_name(stored.dtype)
    dataset.attrs[schema.FIRST_TILE] = first_tile
    return dataset.id.get_chunk_info(0).byte_offset if stored.num_bytes else 0


def _create_sums(file: h5py.File, num_tiles: int) -> int:
    dataset = file.create_dataset(schema.SUMS, (num_tiles,), np.uint64, dcpl=_unwritten())
    return dataset.id.get_offset() or 0


def _unwritten() -> h5py.h5p.PropDCID:
    """All chunks have a place from the start, one behind another, and HDF5 writes none."""
    plan = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    plan.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    plan.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    return plan


def _between(raw: SparseFile, spans: Sequence[tuple[int, int]]) -> Iterator[tuple[int, bytes]]:
    """What a file has outside of these (start, bytes)."""
    position = 0
    for start, size in [*spans, (raw.size, 0)]:
        if start > position:
            raw.seek(position)
            yield position, raw.read(start - position)
        position = start + size


def write_tensors(path: Path, tensors: Mapping[str, torch.Tensor], **attributes: str) -> None:
    """Write a file once, of tensors in this process's memory.

    Raises:
        OSError: it cannot be written.
    """
    stored = [Stored(name, t.dtype, tuple(t.shape)) for name, t in tensors.items()]
    TensorFile(stored, attributes).write(path, packed(stored, tensors.values()))


def packed(stored: Sequence[Stored], tensors: Iterable[torch.Tensor]) -> Iterator[np.ndarray]:
    """Tensors as their file has them, one after another, each only until the next."""
    memory = torch.empty(max((s.num_bytes for s in stored), default=0), dtype=torch.uint8)
    for kind, tensor in zip(stored, tensors, strict=True):
        out = memory[: kind.num_bytes].zero_()
        kind.pack(tensor.cpu(), out)
        yield np.from_dlpack(out)


def _send(descriptor: int, end: int) -> None:
    """Let the disk begin with what has been written up to here."""
    start = max(end - 2 * _SENT_BYTES, 0)
    os.posix_fadvise(descriptor, start, end - start, os.POSIX_FADV_DONTNEED)


def _write_all(descriptor: int, data: memoryview, start: int) -> None:
    done = 0
    while done < len(data):
        done += os.pwrite(descriptor, data[done:], start + done)
