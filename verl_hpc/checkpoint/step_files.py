"""What a rank writes of a step: its part of the tensors, and on rank 0 the small files."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from verl_hpc.checkpoint import schema
from verl_hpc.checkpoint.index import Entry
from verl_hpc.checkpoint.manifest import WrittenFile, described
from verl_hpc.checkpoint.run_state import RunState
from verl_hpc.checkpoint.store import point_latest
from verl_hpc.checkpoint.tensor_file import Stored
from verl_hpc.errors import CheckpointError
from verl_hpc.layout.shard_map import Region, ShardMap
from verl_hpc.rollout.partial import ResponseId
from verl_hpc.rollout.protocol import Response
from verl_hpc.transfer.memory import window

ID_BYTES = 16
"""Length of a save's id, in ASCII."""


@dataclass(frozen=True)
class StepContents:
    """Everything in a step except components."""

    state: RunState | None = None
    """State of the run; None for a step of weights only, which no run can resume from."""
    config: str = ""
    """The resolved configuration, YAML."""
    hf_files: Mapping[str, Path] = field(default_factory=dict)
    """Files to copy to hf/, by name."""
    rank_arrays: Mapping[str, torch.Tensor] = field(default_factory=dict)
    """Per-rank tensors that no other layout could use, such as random-number states."""
    own_files: Mapping[str, Mapping[str, Path]] = field(default_factory=dict)
    """`hf_files` of components that have their own model, by component."""
    ahead: Mapping[ResponseId, Response] = field(default_factory=dict)
    """Responses that this rank's engine generated ahead, on the engine's first rank; must not
    change any more."""


@dataclass(frozen=True)
class Component:
    """A part of a step: tensors of one kind, and the regions that this rank writes."""

    name: str
    shard_map: ShardMap
    tensors: Mapping[str, torch.Tensor]
    """This rank's memory by the local names of the map."""
    regions: Sequence[Region]
    """Regions that this rank writes."""


def datasets(
    components: Sequence[Component], contents: StepContents
) -> tuple[list[Stored], list[Entry]]:
    """Return the datasets of one rank's file, in order, and the index entries of those of
    components."""
    stored = [Stored(schema.SAVE_ID, torch.uint8, (ID_BYTES,))]
    entries: list[Entry] = []
    for component in components:
        for region in component.regions:
            spec, box = component.shard_map.tensors[region.tensor], region.box
            tensor = f"{component.name}/{region.tensor}"
            entries.append(Entry(tensor, f"{tensor}/{len(entries)}", box.start, box.stop))
            dtype = schema.DTYPES[spec.dtype]
            stored.append(Stored(entries[-1].dataset, dtype, box.shape))
    for key, array in contents.rank_arrays.items():
        stored.append(Stored(f"{schema.RANK}/{key}", array.dtype, tuple(array.shape)))
    return stored, entries


def parts_of(
    save_id: str, components: Sequence[Component], contents: StepContents
) -> Iterator[torch.Tensor]:
    """Yield the tensors of `datasets`, in order, each when it is needed."""
    yield torch.tensor(list(save_id.encode()), dtype=torch.uint8)
    for component in components:
        for region in component.regions:
            yield window(component.tensors, region.view, region).detach()
    yield from contents.rank_arrays.values()


def write_small_files(
    directory: Path, contents: StepContents, index: bytes
) -> dict[str, WrittenFile]:
    """Write all small files and sync them to disk; return their descriptions by path.

    Raises:
        OSError: it cannot be written.
        CheckpointError: a file to copy no longer exists.
    """
    for hf in (schema.HF, *map(schema.hf_of, contents.own_files)):
        (directory / hf).mkdir()
    written: dict[str, WrittenFile] = {}
    for name, data in _small_files(contents, index):
        with (directory / name).open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        written[name] = described(data)
    for parent in {Path(name).parent for name in written}:
        sync(directory / parent)
    return written


def _small_files(contents: StepContents, index: bytes) -> Iterator[tuple[str, bytes]]:
    yield schema.INDEX, index
    if contents.state is not None:
        yield schema.STATE, contents.state.model_dump_json(indent=1).encode()
    yield schema.CONFIG, contents.config.encode()
    own = {schema.hf_of(name): files for name, files in contents.own_files.items()}
    for hf, files in {schema.HF: contents.hf_files, **own}.items():
        for name, path in files.items():
            yield f"{hf}/{name}", _read(path)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise CheckpointError(
            f"{path} is gone, of which every step has a copy; put the model's directory back"
        ) from None


def make_real(partial: Path, final: Path) -> None:
    """Rename a complete step to its final name, and point `latest` to it."""
    sync(partial)
    shutil.rmtree(final, ignore_errors=True)
    partial.rename(final)
    sync(final.parent)
    point_latest(final)


def sync(path: Path) -> None:
    """Sync a directory to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
