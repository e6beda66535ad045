"""Write files of tensors: HDF5 makes the layout once, plain writes fill it at every save.

The layout depends only on names, types and shapes, so it is equal at every save of a run. HDF5
makes it in memory, without the tensors' bytes; a save writes it with the bytes in their places. So
a save does not call HDF5, which has one lock for all threads of a process, and cannot close a file
on a full disk.

    <name> ...   (shape)   chunks: tiles; attributes: dtype, first_tile
    xxh3_64      (tiles of all)  uint64: the checksum of each tile
"""

from __future__ import annotations

import io
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from pathlib import Path

import h5py
import numpy as np
import torch
import xxhash

from verl_hpc.checkpoint import schema
from verl_hpc.checkpoint.tiles import num_tiles, pack, tile_shape
from verl_hpc.layout.shard_map import dtype_name

_PAGE = 4096
_SENT_BYTES = 8 << 20
"""Bytes that are being written to disk while the next are checksummed and copied."""


@dataclass(frozen=True)
class Stored:
    """Description of a tensor in a file."""

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
        """Bytes in the file: those of all tiles, padded at the tensor's edges."""
        return self.num_tiles * self.tile_bytes

    def pack(self, tensor: torch.Tensor, out: torch.Tensor) -> None:
        """Copy a tensor tile by tile into `out`, which has `num_bytes` elements of uint8."""
        assert (tensor.dtype, tensor.shape) == (self.dtype, self.shape), self.name
        if self.num_bytes:
            pack(tensor.detach(), self.tile, out.view(self.dtype))


class TensorFile:
    """Writes files with the same tensors and attributes.

    Args:
        tensors: descriptions of the tensors, in order.
        attributes: attributes of the file.
    """

    def __init__(self, tensors: Sequence[Stored], attributes: Mapping[str, str] = {}) -> None:
        self.tensors = tuple(tensors)
        self._attributes = attributes

    def write(self, path: Path, parts: Iterable[np.ndarray]) -> None:
        """Write a file and sync it to disk.

        Args:
            path: path of the file.
            parts: every tensor as packed by `Stored.pack`, flat uint8, in the order of `tensors`;
                each is taken once the previous ones are written.

        Raises:
            OSError: it cannot be written.
        """
        pieces, [*places, place_of_sums] = self._layout
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
        try:
            for place, piece in pieces:
                _write_all(descriptor, memoryview(piece), place)
            sums: list[int] = []
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
    def _layout(self) -> tuple[list[tuple[int, bytes]], list[int]]:
        """HDF5's own bytes of a file by their offsets, and the offsets of each tensor's bytes and
        last of the checksums."""
        places: list[int] = []
        with SparseFile() as raw:
            options = {"alignment_threshold": 1 << 16, "alignment_interval": _PAGE}
            with h5py.File(raw, "w", libver="latest", meta_block_size=1 << 16, **options) as file:
                file.attrs.update(self._attributes)
                num_tiles = 0
                for stored in self.tensors:
                    places.append(_create(file, stored, num_tiles))
                    num_tiles += stored.num_tiles
                places.append(_create_sums(file, num_tiles))
            sizes = [*(stored.num_bytes for stored in self.tensors), 8 * num_tiles]
            spans = sorted(zip(places, sizes, strict=True))
            pieces = list(_between(raw, [span for span in spans if span[1]]))
        return pieces, places


class SparseFile(io.RawIOBase):
    """A file in memory for h5py's file-object driver, which stores only written pages; unwritten
    bytes read as zeros.

    It is not a system file, even a nameless one, since a limit on file sizes would apply, and HDF5
    may crash a process that cannot write.
    """

    def __init__(self) -> None:
        self._pages: dict[int, bytearray] = defaultdict(lambda: bytearray(_PAGE))
        self._position = 0
        self.size = 0

    def readable(self) -> bool:
        return True

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self.size}[whence]
        self._position = base + offset
        return self._position

    def truncate(self, size: int | None = None) -> int:
        self.size = self._position if size is None else size
        return self.size

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        view = memoryview(buffer).cast("B")
        for at, page, start, stop in self._pieces(len(view)):
            content = self._pages.get(page, bytes(_PAGE))
            view[at : at + stop - start] = content[start:stop]
        self._position += len(view)
        return len(view)

    def write(self, data: memoryview) -> int:  # type: ignore[override]
        view = memoryview(data).cast("B")
        for at, page, start, stop in self._pieces(len(view)):
            self._pages[page][start:stop] = view[at : at + stop - start]
        self._position += len(view)
        self.size = max(self.size, self._position)
        return len(view)

    def _pieces(self, count: int) -> Iterator[tuple[int, int, int, int]]:
        """Split the next `count` bytes by page; yield (offset, page, start and stop in it)."""
        at = 0
        while at < count:
            page, start = divmod(self._position + at, _PAGE)
            stop = min(start + count - at, _PAGE)
            yield at, page, start, stop
            at += stop - start


def _create(file: h5py.File, stored: Stored, first_tile: int) -> int:
    """Create a dataset whose bytes are written later; return their offset."""
    kind = schema.stored_dtype(stored.dtype)
    plan = _unwritten() if stored.num_bytes else None
    # HDF5 has no chunks without dimensions: a number is a vector of one.
    chunks = (stored.tile or (1,)) if stored.num_bytes else None
    shape = stored.shape or (1,)
    dataset = file.create_dataset(stored.name, shape, kind, chunks=chunks, dcpl=plan)
    dataset.attrs[schema.DTYPE_ATTRIBUTE] = dtype_name(stored.dtype)
    dataset.attrs[schema.FIRST_TILE] = first_tile
    return dataset.id.get_chunk_info(0).byte_offset if stored.num_bytes else 0


def _create_sums(file: h5py.File, num_tiles: int) -> int:
    dataset = file.create_dataset(schema.SUMS, (num_tiles,), np.uint64, dcpl=_unwritten())
    return dataset.id.get_offset() or 0


def _unwritten() -> h5py.h5p.PropDCID:
    """Return properties by which HDF5 allocates all chunks at once, consecutively, and writes no
    fill values."""
    plan = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    plan.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    plan.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    return plan


def _between(raw: SparseFile, spans: Sequence[tuple[int, int]]) -> Iterator[tuple[int, bytes]]:
    """Yield the parts of a file outside the spans (start, bytes)."""
    position = 0
    for start, size in [*spans, (raw.size, 0)]:
        if start > position:
            raw.seek(position)
            yield position, raw.read(start - position)
        position = start + size


def write_tensors(path: Path, tensors: Mapping[str, torch.Tensor], **attributes: str) -> None:
    """Write one file of tensors in this process's memory.

    Raises:
        OSError: it cannot be written.
    """
    stored = [Stored(name, t.dtype, tuple(t.shape)) for name, t in tensors.items()]
    TensorFile(stored, attributes).write(path, packed(stored, tensors.values()))


def packed(stored: Sequence[Stored], tensors: Iterable[torch.Tensor]) -> Iterator[np.ndarray]:
    """Yield packed tensors; each is valid only until the next."""
    memory = torch.empty(max((s.num_bytes for s in stored), default=0), dtype=torch.uint8)
    for kind, tensor in zip(stored, tensors, strict=True):
        out = memory[: kind.num_bytes].zero_()
        kind.pack(tensor.cpu(), out)
        yield np.from_dlpack(out)


def _send(descriptor: int, end: int) -> None:
    """Start writing the bytes before `end` to disk."""
    start = max(end - 2 * _SENT_BYTES, 0)
    os.posix_fadvise(descriptor, start, end - start, os.POSIX_FADV_DONTNEED)


def _write_all(descriptor: int, data: memoryview, start: int) -> None:
    done = 0
    while done < len(data):
        done += os.pwrite(descriptor, data[done:], start + done)
