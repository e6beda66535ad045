"""Writing a step: every rank its own file, the manifest last, one rename to make it real."""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import h5py
import numpy as np
import torch

from verl_hpc.checkpoint import schema
from verl_hpc.checkpoint.datasets import write_dataset
from verl_hpc.checkpoint.guarded_file import GuardedFile
from verl_hpc.checkpoint.manifest import Manifest, describe, write_manifest
from verl_hpc.checkpoint.run_state import RunState
from verl_hpc.checkpoint.store import point_latest
from verl_hpc.errors import CheckpointError, VerlHpcError
from verl_hpc.layout.shard_map import Region, ShardMap
from verl_hpc.runtime.control import Control

_ROOM = "Free space there, or set `directory` to a file system with room"
_ADVICE = {errno.ENOSPC: _ROOM, errno.EDQUOT: _ROOM, errno.EFBIG: _ROOM}
_OTHER_ADVICE = "See that this directory can be written from every node"

T = TypeVar("T")


@dataclass(frozen=True)
class Component:
    """A part of a step: tensors of one kind, and which of them this rank writes."""

    name: str
    shard_map: ShardMap
    tensors: Mapping[str, torch.Tensor]
    """This rank's memory by the local names of the map."""
    regions: Sequence[Region]
    """What this rank writes of it."""


@dataclass(frozen=True)
class StepContents:
    """Everything of a step that is not a tensor."""

    state: RunState | None = None
    """None for weights alone, which no run resumes from."""
    config: str = ""
    """The resolved configuration, YAML."""
    hf_files: Mapping[str, Path] = field(default_factory=dict)
    """Files to copy to hf/, by name."""
    rank_arrays: Mapping[str, torch.Tensor] = field(default_factory=dict)
    """Per-rank tensors that no other layout could use, such as random-number states."""
    own_files: Mapping[str, Mapping[str, Path]] = field(default_factory=dict)
    """As `hf_files`, of components that have a model of their own, by component."""


@dataclass(frozen=True)
class _Entry:
    """One dataset of one rank's file."""

    tensor: str
    file: str
    dataset: str
    start: tuple[int, ...]
    stop: tuple[int, ...]


def save_step(
    control: Control,
    root: Path,
    step: int,
    components: Sequence[Component],
    contents: StepContents,
    check_owner: Callable[[], None] = lambda: None,
) -> Path:
    """Write a step; every rank calls it. Until the last moment nothing bears the step's name.

    Args:
        control: of the ranks that write.
        root: directory of the run's steps.
        step: number of the step.
        components: tensors, and what this rank writes of them.
        contents: everything else.
        check_owner: called on rank 0 before the step gets its name; raises a VerlHpcError where
            another process has taken the directory over.

    Raises:
        CheckpointError: on every rank if any rank could not write (a full disk, say); earlier
            steps and `latest` are untouched, the partial directory is gone.
    """
    final = root / schema.step_name(step)
    save_id = control.broadcast(secrets.token_hex(8))
    partial = root / f".{final.name}.{save_id}.partial"

    def prepare() -> None:
        if control.rank == 0:
            partial.mkdir(parents=True)

    def write() -> list[_Entry]:
        path = partial / schema.rank_file(control.rank)
        return _write_rank_file(path, save_id, components, contents.rank_arrays)

    def finish(gathered: Sequence[Sequence[_Entry]]) -> None:
        if control.rank == 0:
            entries = [entry for entries in gathered for entry in entries]
            _write_index(partial, components, entries)
            _write_small(partial, contents)
            write_manifest(partial, _manifest(partial, step, control.size, save_id))
            check_owner()
            _make_real(partial, final)

    try:
        control.together(lambda: _reporting(prepare, final, control.rank))
        entries = control.together(lambda: _reporting(write, final, control.rank))
        gathered = control.gather(entries)
        control.together(lambda: _reporting(lambda: finish(gathered), final, control.rank))
    except VerlHpcError:
        if control.rank == 0:
            shutil.rmtree(partial, ignore_errors=True)
        raise
    return final


def _reporting(work: Callable[[], T], final: Path, rank: int) -> T:
    try:
        return work()
    except OSError as error:
        reason = error.strerror or str(error).split(" (")[0]  # HDF5 appends a page of details
        raise CheckpointError(
            f"could not write {final.name} to {final.parent} (rank {rank}: {reason}); earlier "
            f"steps are intact. {_ADVICE.get(error.errno or 0, _OTHER_ADVICE)}, and resume"
        ) from error


def _write_rank_file(
    path: Path,
    save_id: str,
    components: Iterable[Component],
    rank_arrays: Mapping[str, torch.Tensor],
) -> list[_Entry]:
    entries: list[_Entry] = []
    with GuardedFile(path) as guarded, h5py.File(guarded, "w", libver="latest") as file:
        file.attrs[schema.SAVE_ATTRIBUTE] = save_id
        for component in components:
            for region in component.regions:
                if guarded.error is not None:
                    return []  # the error is raised on the way out
                memory = component.tensors[region.view.name]
                first = memory.storage_offset() + region.view.offset
                part = memory.as_strided(region.box.shape, region.view.strides, first)
                tensor = f"{component.name}/{region.tensor}"
                dataset = f"{tensor}/{len(entries)}"
                write_dataset(file, dataset, part)
                box = region.box
                entries.append(_Entry(tensor, path.name, dataset, box.start, box.stop))
        for key, array in rank_arrays.items():
            write_dataset(file, f"rank/{key}", array)
    return entries


def _write_index(
    directory: Path, components: Sequence[Component], entries: Sequence[_Entry]
) -> None:
    shapes = {
        f"{c.name}/{tensor}": spec
        for c in components
        for tensor, spec in c.shard_map.tensors.items()
    }
    names = sorted({entry.tensor for entry in entries})
    place = {name: i for i, name in enumerate(names)}
    files = sorted({entry.file for entry in entries})
    path = directory / schema.INDEX
    with GuardedFile(path) as guarded, h5py.File(guarded, "w", libver="latest") as file:
        table = file.create_group("regions")
        table.create_dataset("tensors", data=_texts(names))
        table.create_dataset("dtypes", data=_texts(shapes[n].dtype for n in names))
        table.create_dataset("shapes", data=_padded([shapes[n].shape for n in names]))
        table.create_dataset("files", data=_texts(files))
        table.create_dataset("tensor", data=[place[e.tensor] for e in entries], dtype="i4")
        table.create_dataset("file", data=[files.index(e.file) for e in entries], dtype="i4")
        table.create_dataset("dataset", data=_texts(e.dataset for e in entries))
        table.create_dataset("start", data=_padded([e.start for e in entries]))
        table.create_dataset("stop", data=_padded([e.stop for e in entries]))
        by_tensor: dict[str, list[_Entry]] = {}
        for entry in entries:
            by_tensor.setdefault(entry.tensor, []).append(entry)
        for name, parts in by_tensor.items():
            _write_virtual(file, name, shapes[name].shape, shapes[name].dtype, parts)


def _texts(texts: Iterable[str]) -> np.ndarray:
    """Of one length, so that a table has no more bytes than its file."""
    return np.array([text.encode() for text in texts], np.bytes_)


def _padded(rows: Sequence[Sequence[int]]) -> np.ndarray:
    """Coordinates of tensors of different rank in one table; -1 marks dimensions they lack."""
    width = max((len(row) for row in rows), default=1)
    return np.array([[*row, *[-1] * (width - len(row))] for row in rows], dtype=np.int64)


def _write_virtual(
    file: h5py.File, name: str, shape: tuple[int, ...], dtype: str, parts: Sequence[_Entry]
) -> None:
    """The whole tensor as one dataset, for people and tools that do not know the shards."""
    stored = schema.stored_dtype(schema.DTYPES[dtype])
    layout = h5py.VirtualLayout(shape, stored)
    for part in parts:
        size = tuple(b - a for a, b in zip(part.start, part.stop, strict=True))
        window = tuple(map(slice, part.start, part.stop))
        layout[window] = h5py.VirtualSource(part.file, part.dataset, shape=size)
    dataset = file.create_virtual_dataset(name, layout, fillvalue=schema.fill_value(stored))
    dataset.attrs[schema.DTYPE_ATTRIBUTE] = dtype


def _write_small(directory: Path, contents: StepContents) -> None:
    if contents.state is not None:
        _write_text(directory / schema.STATE, contents.state.model_dump_json(indent=1))
    _write_text(directory / schema.CONFIG, contents.config)
    _copy_hf(contents.hf_files, directory / schema.HF)
    for component, files in contents.own_files.items():
        _copy_hf(files, directory / schema.hf_of(component))


def _copy_hf(files: Mapping[str, Path], hf: Path) -> None:
    hf.mkdir()
    for name, path in files.items():
        if not path.is_file():
            raise CheckpointError(
                f"{path} is gone, of which every step has a copy; put the model's directory back"
            )
        shutil.copyfile(path, hf / name)
        _sync(hf / name)
    _sync(hf)


def _manifest(directory: Path, step: int, num_ranks: int, save_id: str) -> Manifest:
    files = {
        str(path.relative_to(directory)): describe(path, not schema.RANK_FILE.fullmatch(path.name))
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }
    return Manifest(step=step, time=time.time(), num_ranks=num_ranks, save_id=save_id, files=files)


def _make_real(partial: Path, final: Path) -> None:
    _sync(partial)
    shutil.rmtree(final, ignore_errors=True)
    partial.rename(final)
    _sync(final.parent)
    point_latest(final)


def _write_text(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
    _sync(path)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
