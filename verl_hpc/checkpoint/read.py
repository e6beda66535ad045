"""Reading a step: as a shard map whose holders are files, into any layout."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from functools import cached_property, lru_cache
from io import BytesIO
from pathlib import Path
from typing import Any

import h5py
import torch

from verl_hpc.checkpoint import schema
from verl_hpc.checkpoint.ahead import read_ahead
from verl_hpc.checkpoint.damage import reading
from verl_hpc.checkpoint.datasets import dataset_names, open_file, plain_dataset, read_dataset
from verl_hpc.checkpoint.manifest import read_manifest
from verl_hpc.checkpoint.run_state import RunState
from verl_hpc.errors import CheckpointError, DamageError
from verl_hpc.layout.box import Box, View, row_major_strides
from verl_hpc.layout.shard_map import Region, ShardMap, TensorSpec
from verl_hpc.rollout.partial import ResponseId, Tagged

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

    @property
    def is_of_a_run(self) -> bool:
        """Whether it has a state; an imported model has none."""
        return schema.STATE in self.manifest.files

    @cached_property
    def state(self) -> RunState:
        """What the run remembers.

        Raises:
            DamageError: it is not as it was written.
            CheckpointError: the step was imported; there is no run to resume.
        """
        if not self.is_of_a_run:
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
        return sorted(self._maps)

    def component(self, name: str) -> ShardMap:
        """The tensors of one component, without its name; holders are file paths.

        Raises:
            DamageError: the index is not as it was written.
            CheckpointError: the step has no such component.
        """
        if name not in self._maps:
            found = ", ".join(self.components)
            raise CheckpointError(f"{self.path}: no {name} in it, only {found}")
        return self._maps[name]

    def rank_arrays(self, rank: int) -> dict[str, torch.Tensor]:
        """What rank `rank` wrote for itself alone.

        Raises:
            DamageError: the file is not as it was written.
        """
        path = self.path / schema.rank_file(rank)
        with reading(path), _open(path, self.manifest.save_id) as file:
            names = dataset_names(file, schema.RANK)
            return {name: read_dataset(file, f"{schema.RANK}/{name}") for name in names}

    def ahead(self, wanted: Callable[[ResponseId], bool]) -> dict[ResponseId, Tagged]:
        """Responses of later steps that engines had made, as far as they are wanted.

        Raises:
            DamageError: a file is not as it was written.
        """
        names = [name for name in self.manifest.files if schema.AHEAD_FILE.fullmatch(name)]
        found: dict[ResponseId, Tagged] = {}
        for name in names:
            found |= read_ahead(self.path / name, self.manifest.save_id, wanted)
        return found

    def reader(self) -> Hdf5Reader:
        """Reads the files that the shard maps of this step name."""
        return Hdf5Reader(self.manifest.save_id)

    @cached_property
    def _maps(self) -> dict[str, ShardMap]:
        """By component."""
        data = self.manifest.read(self.path, schema.INDEX)
        with reading(self.path / schema.INDEX), h5py.File(BytesIO(data), "r") as file:
            return _parse_table(file, self.path, self.manifest.files)


class Hdf5Reader:
    """Reads boxes of datasets; every tile that it touches is checked.

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
    is_old = schema.SAVE_ID in file.attrs
    found = file.attrs[schema.SAVE_ID] if is_old else _text(read_dataset(file, schema.SAVE_ID))
    if found != save_id:
        raise ValueError("of another save than the rest of the step")
    return file


def _text(of_bytes: torch.Tensor) -> str:
    return bytes(of_bytes.tolist()).decode()


def _parse_table(
    file: h5py.File, directory: Path, written: Mapping[str, Any]
) -> dict[str, ShardMap]:
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
    tensors: dict[str, dict[str, TensorSpec]] = defaultdict(dict)
    regions: dict[str, list[Region]] = defaultdict(list)
    for name, shape, dtype in zip(names, shapes, dtypes, strict=True):
        component, _, tensor = name.partition("/")
        tensors[component][tensor] = TensorSpec(shape, dtype)
    paths = [str(directory / f) for f in files]
    rows = zip(
        column("tensor"), column("file"), datasets, column("start"), column("stop"), strict=True
    )
    for number, holder, dataset, start, stop in rows:
        shape = shapes[number]
        box = Box(tuple(start[: len(shape)]), tuple(stop[: len(shape)]))
        if not Box.whole(shape).contains(box):
            raise ValueError(f"names a part of {names[number]} outside of it")
        view = View(dataset, 0, row_major_strides(box.shape))
        component, _, tensor = names[number].partition("/")
        regions[component].append(Region(tensor, box, (paths[holder],), view))
    return {name: ShardMap(found, regions[name]) for name, found in tensors.items()}
