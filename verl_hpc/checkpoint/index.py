"""index.h5: the file of each region of every tensor, and the tensors as virtual datasets.

It does not depend on the tensors' contents, and so is equal at every save of a run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from io import BytesIO

import h5py
import numpy as np

from verl_hpc.checkpoint import schema
from verl_hpc.layout.box import Box
from verl_hpc.layout.shard_map import TensorSpec


@dataclass(frozen=True)
class Entry:
    """One dataset of one rank's file."""

    tensor: str
    dataset: str
    start: tuple[int, ...]
    stop: tuple[int, ...]


_Rows = Sequence[tuple[int, Entry]]
"""Entries, each with the rank that writes it."""


@dataclass(frozen=True)
class Index:
    """A step's tensors, and the files of their regions."""

    tensors: Mapping[str, TensorSpec]
    """Whole tensors by name."""
    entries: Sequence[Sequence[Entry]]
    """Each rank's entries, in rank order."""

    @cached_property
    def content(self) -> bytes:
        """Content of the file."""
        rows = [(rank, entry) for rank, of_rank in enumerate(self.entries) for entry in of_rank]
        parts: dict[str, list[tuple[int, Entry]]] = {}
        for row in rows:
            parts.setdefault(row[1].tensor, []).append(row)
        image = BytesIO()
        with h5py.File(image, "w", libver="latest") as file:
            _write_table(file, self.tensors, rows)
            for name, of_tensor in parts.items():
                _write_virtual(file, name, self.tensors[name], of_tensor)
        return image.getvalue()


def _write_table(file: h5py.File, tensors: Mapping[str, TensorSpec], rows: _Rows) -> None:
    names = sorted({entry.tensor for _, entry in rows})
    place = {name: i for i, name in enumerate(names)}
    writers = sorted({rank for rank, _ in rows})
    number = {rank: i for i, rank in enumerate(writers)}
    table = file.create_group("regions")
    table.create_dataset("tensors", data=_texts(names))
    table.create_dataset("dtypes", data=_texts(tensors[n].dtype for n in names))
    table.create_dataset("shapes", data=_padded([tensors[n].shape for n in names]))
    table.create_dataset("files", data=_texts(map(schema.rank_file, writers)))
    table.create_dataset("tensor", data=[place[e.tensor] for _, e in rows], dtype="i4")
    table.create_dataset("file", data=[number[rank] for rank, _ in rows], dtype="i4")
    table.create_dataset("dataset", data=_texts(e.dataset for _, e in rows))
    table.create_dataset("start", data=_padded([e.start for _, e in rows]))
    table.create_dataset("stop", data=_padded([e.stop for _, e in rows]))


def _texts(texts: Iterable[str]) -> np.ndarray:
    """Encode texts as fixed-length bytes, so that a table has no more bytes than its file."""
    return np.array([text.encode() for text in texts], np.bytes_)


def _padded(rows: Sequence[Sequence[int]]) -> np.ndarray:
    """Pad coordinates of tensors of different rank to one table; -1 marks missing dimensions."""
    width = max((len(row) for row in rows), default=1)
    return np.array([[*row, *[-1] * (width - len(row))] for row in rows], dtype=np.int64)


def _write_virtual(file: h5py.File, name: str, spec: TensorSpec, parts: _Rows) -> None:
    """Write a virtual dataset of the whole tensor, for people and tools that do not know the
    shards."""
    stored = schema.stored_dtype(schema.DTYPES[spec.dtype])
    shape = spec.shape or (1,)
    whole = h5py.h5s.create_simple(shape)
    plan = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    # Not h5py.VirtualLayout, which takes ten times as long; there are tens of thousands of parts.
    for rank, part in parts:
        size = Box(part.start, part.stop).shape or (1,)
        whole.select_hyperslab(part.start or (0,), (1,) * len(size), block=size)
        source = h5py.h5s.create_simple(size)
        path = schema.rank_file(rank).encode()
        plan.set_virtual(whole, path, part.dataset.encode(), source)
    plan.set_fill_value(np.array(schema.fill_value(stored), stored))
    dataset = file.create_dataset(name, shape, stored, dcpl=plan)
    dataset.attrs[schema.DTYPE_ATTRIBUTE] = spec.dtype
