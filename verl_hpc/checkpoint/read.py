"""Reading a step: as a shard map whose holders are files, into any layout."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property, lru_cache
from io import BytesIO
from pathlib import Path
from typing import Any

import h5py
import torch

from verl_hpc.checkpoint import schema
from verl_hpc.checkpoint.damage import reading
from verl_hpc.checkpoint.datasets import dataset_names, open_file, plain_dataset, read_dataset
from verl_hpc.checkpoint.manifest import read_manifest
from verl_hpc.checkpoint.run_state import RunState
from verl_hpc.errors import CheckpointError, DamageError
from verl_hpc.layout.box import Box, View, row_major_strides
from verl_hpc.layout.shard_map import Region, ShardMap, TensorSpec

# HDF5's cache of open datasets' chunks; regions are read once, front to back.
_OPEN_FILES = 32


class Step:
    """A complete step directory.

    What this object reads itself it compares with the checksums of the manifest.

    Args:
        path: the directory.
        check_files: compare every file with the manifest, also those that nobody reads now; one
            rank is enough.

    Raises:
        DamageError: the step is not as it was written, or has the name of another.
        CheckpointError: it has a format that this program does not read.
    """

    def __init__(self, path: str | Path, check_files: bool = True) -> None:
        self.path = Path(path)
        self.manifest = read_manifest(self.path)
        if schema.step_number(self.path) not in (None, self.number):
            raise DamageError(f"{self.path}: is step {self.number} by its manifest, renamed")
        if check_files:
            self.manifest.check_files(self.path)

    @property
    def number(self) -> int:
        return self.manifest.step

    @property
    def num_ranks(self) -> int:
        return self.manifest.num_ranks

    def hf_directory(self, component: str = "") -> Path:
        """Where config.json and the like of a component are."""
        own = schema.hf_of(component)
        return self.path / (own if own in self.manifest.hf_names else schema.HF)

    @cached_property
    def state(self) -> RunState:
        """What the run remembers.

        Raises:
            DamageError: it is not as it was written.
            CheckpointError: the step was imported; there is no run to resume.
        """
        if schema.STATE not in self.manifest.files:
            raise CheckpointError(
                f"{self.path}: an imported model, which no run can resume from; start a run "
                "from it with model.path"
            )
        data = self.manifest.read(self.path, schema.STATE)
        with reading(self.path / schema.STATE):
            return RunState.model_validate_json(data)

    @cached_property
    def components(self) -> list[str]:
        """Names of its components.

        Raises:
            DamageError: the index is not as it was written.
        """
        return sorted({name.split("/")[0] for name in self._table[0]})

    def component(self, name: str) -> ShardMap:
        """The tensors of one component, without its name; holders are file paths.

        Raises:
            DamageError: the index is not as it was written.
            CheckpointError: the step has no such component.
        """
        prefix = f"{name}/"
        tensors, regions = self._table
        chosen = {n.removeprefix(prefix): s for n, s in tensors.items() if n.startswith(prefix)}
        if not chosen:
            found = ", ".join(self.components)
            raise CheckpointError(f"{self.path}: no {name} in it, only {found}")
        return ShardMap(
            chosen,
            [
                Region(r.tensor.removeprefix(prefix), r.box, r.holders, r.view)
                for r in regions
                if r.tensor.startswith(prefix)
            ],
        )

    def rank_arrays(self, rank: int) -> dict[str, torch.Tensor]:
        """What rank `rank` wrote for itself alone.

        Raises:
            DamageError: the file is not as it was written.
        """
        path = self.path / schema.rank_file(rank)
        with reading(path), _open(path, self.manifest.save_id) as file:
            names = dataset_names(file, "rank")
            return {name: read_dataset(file, f"rank/{name}") for name in names}

    def reader(self) -> Hdf5Reader:
        """Reads the files that the shard maps of this step name."""
        return Hdf5Reader(self.manifest.save_id)

    @cached_property
    def _table(self) -> tuple[dict[str, TensorSpec], list[Region]]:
        data = self.manifest.read(self.path, schema.INDEX)
        with reading(self.path / schema.INDEX), h5py.File(BytesIO(data), "r") as file:
            return _parse_table(file, self.path, self.manifest.files)


class Hdf5Reader:
    """Reads boxes of datasets; every chunk that it touches is checked.

    Args:
        save_id: of the save that files must be of.

    Raises (`read`):
        DamageError: the file is not as it was written, or of another save.
    """

    def __init__(self, save_id: str) -> None:
        self._open = lru_cache(maxsize=_OPEN_FILES)(lambda path: _open(path, save_id))

    def read(self, file: str, dataset: str, box: Box) -> torch.Tensor:
        path = Path(file)
        with reading(path):
            return read_dataset(self._open(path), dataset, box)


def _open(path: Path, save_id: str) -> h5py.File:
    file = open_file(path)
    if file.attrs[schema.SAVE_ATTRIBUTE] != save_id:
        raise ValueError("of another save than the rest of the step")
    return file


def _parse_table(
    file: h5py.File, directory: Path, written: Mapping[str, Any]
) -> tuple[dict[str, TensorSpec], list[Region]]:
    def column(name: str) -> Any:
        return plain_dataset(file, f"regions/{name}")[:].tolist()

    texts = ("tensors", "dtypes", "files", "dataset")
    names, dtypes, files, datasets = ([t.decode() for t in column(text)] for text in texts)
    unknown = {d for d in dtypes if d not in schema.DTYPES} | {
        f for f in files if f not in written or not schema.RANK_FILE.fullmatch(f)
    }
    if unknown:
        raise ValueError(f"names {', '.join(sorted(unknown))}, which is not part of a step")
    shapes = [tuple(n for n in row if n >= 0) for row in column("shapes")]
    tensors = {n: TensorSpec(s, d) for n, s, d in zip(names, shapes, dtypes, strict=True)}
    paths = [str(directory / f) for f in files]
    rows = zip(
        column("tensor"), column("file"), datasets, column("start"), column("stop"), strict=True
    )
    regions = []
    for tensor, holder, dataset, start, stop in rows:
        dims = len(shapes[tensor])
        box = Box(tuple(start[:dims]), tuple(stop[:dims]))
        if not Box.whole(shapes[tensor]).contains(box):
            raise ValueError(f"names a part of {names[tensor]} outside of it")
        view = View(dataset, 0, row_major_strides(box.shape))
        regions.append(Region(names[tensor], box, (paths[holder],), view))
    return tensors, regions
