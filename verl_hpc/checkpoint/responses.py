"""Responses as columns of an HDF5 file, and the files of an interrupted rollout's finished ones.

    lengths      (n,) int64, tokens of each response
    ends         (n,) uint8, why it ended: the place in `_ENDS`
    tokens       (sum of lengths,) int32
    log_probs    (sum of lengths,) float32
    sampled      (sum of lengths,) uint8, 1 where the model sampled a token

Where an engine gives experts, their rows follow:

    experts      (sum of rows, bytes) uint8
    experts_rows (n,) int64, rows of each response; -1 where it has none
    experts_form (2 or 3,) int64: bytes of an element, then the shape of a row

A replica's finished responses are in the directory of the step that generated them. These files are
not part of the step: they are written after its manifest, and deleted with it.

    step_00000006/rollout/replica_00003.h5
        key         attribute: what they answer, and how; other responses are of no use
        slots       (n,) int64
        ...         the columns
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import h5py
import numpy as np
import torch

from verl_hpc.checkpoint.damage import reading
from verl_hpc.checkpoint.datasets import open_file, read_dataset
from verl_hpc.checkpoint.tensor_file import write_tensors
from verl_hpc.errors import CheckpointError
from verl_hpc.rollout.protocol import Response

_ENDS: tuple[Literal["unfinished", "stop", "length"], ...] = ("unfinished", "stop", "length")
_TYPES = {1: np.uint8, 2: np.uint16}
_DIRECTORY = "rollout"
_KEY = "key"


def response_columns(responses: Sequence[Response]) -> dict[str, torch.Tensor]:
    """Return responses as the tensors that `responses_in` reads from a file."""
    return {
        "lengths": torch.tensor([len(r.tokens) for r in responses], dtype=torch.int64),
        "ends": torch.tensor([_ENDS.index(r.finish_reason) for r in responses], dtype=torch.uint8),
        "tokens": torch.tensor([t for r in responses for t in r.tokens], dtype=torch.int32),
        "log_probs": torch.tensor([p for r in responses for p in r.log_probs], dtype=torch.float32),
        "sampled": torch.tensor([m for r in responses for m in r.sampled], dtype=torch.uint8),
        **_rows("experts", [r.experts for r in responses]),
    }


def responses_in(file: h5py.File) -> list[Response]:
    """Read the responses of a file that holds `response_columns`.

    Raises:
        KeyError, ValueError, OSError, RuntimeError: the file is damaged.
    """
    lengths, ends = read_dataset(file, "lengths").tolist(), read_dataset(file, "ends").tolist()
    tokens, log_probs, sampled = (
        list(split(read_dataset(file, name).numpy(), lengths))
        for name in ("tokens", "log_probs", "sampled")
    )
    experts = _read_rows(file, "experts", len(lengths))
    return [
        Response(
            tuple(tokens[i].tolist()),
            tuple(log_probs[i].tolist()),
            _ENDS[end],
            None if sampled[i].all() else tuple(sampled[i].tolist()),
            experts[i],
        )
        for i, end in enumerate(ends)
    ]


def split(array: Any, lengths: Sequence[int]) -> Iterator[Any]:
    """Split an array into consecutive parts.

    Raises:
        ValueError: the lengths do not add up to the array's.
    """
    if min(lengths, default=0) < 0 or sum(lengths) != len(array):
        raise ValueError(f"has {len(array)} rows, {sum(lengths)} were written")
    stops = np.cumsum(lengths, dtype=np.int64).tolist()
    return (array[stop - n : stop] for n, stop in zip(lengths, stops, strict=True))


def _rows(name: str, arrays: Sequence[Any]) -> dict[str, torch.Tensor]:
    """Return the columns of arrays (rows, ...) of one type and width; some may be None."""
    present = [np.ascontiguousarray(array) for array in arrays if array is not None]
    if not present:
        return {}
    form = [present[0].itemsize, *present[0].shape[1:]]
    rows = [array.view(np.uint8).reshape(len(array), int(np.prod(form))) for array in present]
    counts = [-1 if array is None else len(array) for array in arrays]
    return {
        name: torch.from_numpy(np.concatenate(rows)),
        f"{name}_rows": torch.tensor(counts, dtype=torch.int64),
        f"{name}_form": torch.tensor(form, dtype=torch.int64),
    }


def _read_rows(file: h5py.File, name: str, count: int) -> list[Any]:
    if not file.id.links.exists(name.encode()):
        return [None] * count
    itemsize, *shape = read_dataset(file, f"{name}_form").tolist()
    counts = read_dataset(file, f"{name}_rows").tolist()
    parts = split(read_dataset(file, name).numpy(), [max(n, 0) for n in counts])
    return [
        part.view(_TYPES[itemsize]).reshape(n, *shape) if n >= 0 else None
        for n, part in zip(counts, parts, strict=True)
    ]


def write_responses(step: Path, replica: int, key: str, responses: Mapping[int, Response]) -> None:
    """Write a replica's finished responses, by slot, into a step's directory.

    Raises:
        CheckpointError: they cannot be written.
    """
    path = step / _DIRECTORY / f"replica_{replica:05d}.h5"
    partial = path.with_suffix(".partial")
    slots = torch.tensor(list(responses), dtype=torch.int64)
    columns = {"slots": slots, **response_columns(list(responses.values()))}
    try:
        path.parent.mkdir(exist_ok=True)
        write_tensors(partial, columns, **{_KEY: key})
        partial.replace(path)
    except OSError as error:
        raise CheckpointError(f"{path}: {error}") from None


def read_responses(step: Path) -> Iterator[tuple[str, dict[int, Response]]]:
    """Yield each stored replica's key, and its responses by slot.

    Raises:
        DamageError: a file is damaged.
    """
    for path in sorted((step / _DIRECTORY).glob("replica_*.h5")):
        with reading(path), open_file(path) as file:
            slots = read_dataset(file, "slots").tolist()
            responses = dict(zip(slots, responses_in(file), strict=True))
            of_replica = str(file.attrs[_KEY]), responses
        yield of_replica
