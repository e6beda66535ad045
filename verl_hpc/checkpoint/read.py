"""Read a step, as a shard map with files as holders, into any layout."""

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
from verl_hpc.rollout.partial import ResponseId
from verl_hpc.rollout.protocol import Response

_OPEN_FILES = 32


class Step:
    """A complete step directory.

    Everything read through this object is checked against the manifest's checksums.

    Args:
        path: the step directory.
        check_files: compare all files with the manifest, even those not read now; one rank is
            enough.

    Raises:
        DamageError: the step is damaged, or was renamed to another step.
        CheckpointError: this program does not read its format.
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
        """Return the directory of a component's config.json, tokenizer and so on."""
        own = schema.hf_of(component)
        return self.path / (own if own in self.manifest.hf_names else schema.HF)

    @property
    def is_of_a_run(self) -> bool:
        """Whether the step has a run's state, which an imported model lacks."""
        return schema.STATE in self.manifest.files

    @cached_property
    def state(self) -> RunState:
        """State of the run at this step.

        Raises:
            DamageError: it is damaged.
            CheckpointError: the step is an imported model, without a run to resume.
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
        """Names of the step's components.

        Raises:
            DamageError: the index is damaged.
        """
        return sorted(self._maps)

    def component(self, name: str) -> ShardMap:
        """Return the map of one component's tensors, named without the component; holders are file
        paths.

        Raises:
            DamageError: the index is damaged.
            CheckpointError: the step has no such component.
        """
        if name not in self._maps:
            known = ", ".join(self.components)
            raise CheckpointError(f"{self.path}: no {name} in it, only {known}")
        return self._maps[name]

    def rank_arrays(self, rank: int) -> dict[str, torch.Tensor]:
        """Return the arrays that rank `rank` wrote for itself.

        Raises:
            DamageError: the file is damaged.
        """
        path = self.path / schema.rank_file(rank)
        with reading(path), _open(path, self.manifest.save_id) as file:
            names = dataset_names(file, schema.RANK)
            return {name: read_dataset(file, f"{schema.RANK}/{name}") for name in names}

    def ahead(self, wanted: Callable[[ResponseId], bool]) -> dict[ResponseId, Response]:
        """Return the wanted responses that engines had generated ahead for later steps.

        Raises:
            DamageError: a file is damaged.
        """
        names = [name for name in self.manifest.files if schema.AHEAD_FILE.fullmatch(name)]
        responses: dict[ResponseId, Response] = {}
        for name in names:
            responses |= read_ahead(self.path / name, self.manifest.save_id, wanted)
        return responses

    def reader(self) -> Hdf5Reader:
        """Return a reader of the files in this step's shard maps."""
        return Hdf5Reader(self.manifest.save_id)

    @cached_property
    def _maps(self) -> dict[str, ShardMap]:
        """Shard maps by component."""
        data = self.manifest.read(self.path, schema.INDEX)
        with reading(self.path / schema.INDEX), h5py.File(BytesIO(data), "r") as file:
            return _parse_table(file, self.path, self.manifest.files)


class Hdf5Reader:
    """Reads boxes of datasets, checking every tile that a box touches.

    Args:
        save_id: id of the save that files must belong to.

    Raises (`read`):
        DamageError: the file is damaged, or belongs to another save.
    """

    def __init__(self, save_id: str) -> None:
        self._open = lru_cache(maxsize=_OPEN_FILES)(lambda path: _open(path, save_id))

    def read(self, file: str, dataset: str, box: Box) -> torch.Tensor:
        path = Path(file)
        with reading(path):
            return read_dataset(self._open(path), dataset, box)


def _open(path: Path, save_id: str) -> h5py.File:
    file = open_file(path)
    if bytes(read_dataset(file, schema.SAVE_ID).tolist()).decode() != save_id:
        raise ValueError("of another save than the rest of the step")
    return file


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
    # Tensors are named <component>/<logical tensor>; each component gets its own shard map.
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
            raise ValueError(f"{box} is not a part of {names[number]}, whose shape is {shape}")
        view = View(dataset, 0, row_major_strides(box.shape))
        component, _, tensor = names[number].partition("/")
        regions[component].append(Region(tensor, box, (paths[holder],), view))
    return {name: ShardMap(specs, regions[name]) for name, specs in tensors.items()}
