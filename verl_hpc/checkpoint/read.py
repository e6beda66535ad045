"""Reading a step: as a shard map whose holders are files, into any layout."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import h5py
import torch

from verl_hpc.checkpoint import schema
from verl_hpc.checkpoint.store import read_manifest
from verl_hpc.errors import CheckpointError
from verl_hpc.layout.box import Box, View, row_major_strides
from verl_hpc.layout.shard_map import Region, ShardMap, TensorSpec

# HDF5's cache of open datasets' chunks; regions are read once, front to back.
_OPEN_FILES = 32


class Step:
    """A complete step directory.

    Args:
        path: the directory.
        check_files: compare the size of every file with the manifest.

    Raises:
        CheckpointError: a file is missing, has another size than was written, or cannot be read.
    """

    def __init__(self, path: str | Path, check_files: bool = True) -> None:
        self.path = Path(path)
        self.manifest = read_manifest(self.path, check_files)
        with _reading(self.path / schema.STATE):
            text = (self.path / schema.STATE).read_text(encoding="utf-8")
            self.state: Mapping[str, Any] = json.loads(text)

    @property
    def number(self) -> int:
        return int(self.manifest["step"])

    @property
    def num_ranks(self) -> int:
        return int(self.manifest["num_ranks"])

    @property
    def hf_directory(self) -> Path:
        return self.path / schema.HF

    def component(self, name: str) -> ShardMap:
        """The tensors of one component, without its name; holders are file paths.

        Raises:
            CheckpointError: the step has no such component.
        """
        prefix = f"{name}/"
        tensors, regions = _read_table(self.path)
        chosen = {n.removeprefix(prefix): s for n, s in tensors.items() if n.startswith(prefix)}
        if not chosen:
            found = sorted({n.split("/")[0] for n in tensors})
            raise CheckpointError(f"{self.path}: no {name} in it, only {', '.join(found)}")
        return ShardMap(
            chosen,
            [
                Region(r.tensor.removeprefix(prefix), r.box, r.holders, r.view)
                for r in regions
                if r.tensor.startswith(prefix)
            ],
        )

    def rank_arrays(self, rank: int) -> dict[str, torch.Tensor]:
        """What rank `rank` wrote for itself alone."""
        path = self.path / schema.rank_file(rank)
        with _reading(path), h5py.File(path, "r", locking=False) as file:
            group = file.get("rank", {})
            return {name: _load(dataset, ()) for name, dataset in group.items()}


class Hdf5Reader:
    """Reads boxes of datasets; HDF5 verifies the checksum of every chunk it touches.

    Raises (`read`):
        CheckpointError: the file is damaged, or lacks the dataset.
    """

    def __init__(self) -> None:
        self._open = lru_cache(maxsize=_OPEN_FILES)(_open)

    def read(self, file: str, dataset: str, box: Box) -> torch.Tensor:
        path = Path(file)
        with _reading(path):
            return _load(self._open(path)[dataset], box.slices)


def _open(path: Path) -> h5py.File:
    return h5py.File(path, "r", locking=False)


def _load(dataset: h5py.Dataset, window: tuple[slice, ...]) -> torch.Tensor:
    return schema.from_stored(dataset[window], dataset.attrs[schema.DTYPE_ATTRIBUTE])


class _reading:  # noqa: N801 (a context manager)
    """Turns HDF5's complaints into one that names the file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, _: object) -> None:
        if isinstance(error, OSError | KeyError | RuntimeError | ValueError):
            raise CheckpointError(
                f"{self.path}: damaged ({error}); resume uses the step before it"
            ) from error


def _read_table(directory: Path) -> tuple[dict[str, TensorSpec], list[Region]]:
    path = directory / schema.INDEX
    with _reading(path), h5py.File(path, "r", locking=False) as file:
        table = file["regions"]
        names = [n.decode() for n in table["tensors"][:]]
        dtypes = [d.decode() for d in table["dtypes"][:]]
        shapes = [tuple(n for n in row if n >= 0) for row in table["shapes"][:].tolist()]
        files = [str(directory / f.decode()) for f in table["files"][:]]
        rows = zip(
            table["tensor"][:].tolist(),
            table["file"][:].tolist(),
            [d.decode() for d in table["dataset"][:]],
            table["start"][:].tolist(),
            table["stop"][:].tolist(),
            strict=True,
        )
        tensors = {n: TensorSpec(s, d) for n, s, d in zip(names, shapes, dtypes, strict=True)}
        regions = []
        for tensor, holder, dataset, start, stop in rows:
            dims = len(shapes[tensor])
            box = Box(tuple(start[:dims]), tuple(stop[:dims]))
            view = View(dataset, 0, row_major_strides(box.shape))
            regions.append(Region(names[tensor], box, (files[holder],), view))
    return tensors, regions
