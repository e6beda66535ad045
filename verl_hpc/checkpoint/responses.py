"""Finished responses of a rollout that was interrupted, beside the step they were generated from.

    step_00000006/rollout/replica_00003.h5
        key         attribute: what they answer, and how; other responses are of no use
        slots       (n,) int64
        lengths     (n,) int64, tokens of each
        cut         (n,) bool, whether the length limit ended it
        tokens      (sum of lengths,) int32
        log_probs   (sum of lengths,) float32

The files are no part of the step: they come after its manifest, and go with it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import h5py
import numpy as np

from verl_hpc.checkpoint.guarded_file import GuardedFile
from verl_hpc.errors import CheckpointError

_DIRECTORY = "rollout"
_KEY = "key"


@dataclass(frozen=True)
class StoredResponse:
    """One response as it was generated."""

    tokens: tuple[int, ...]
    log_probs: tuple[float, ...]
    cut: bool


def write_responses(
    step: Path, replica: int, key: str, responses: Mapping[int, StoredResponse]
) -> None:
    """Leave a replica's finished responses, by slot, in a step's directory.

    Raises:
        CheckpointError: they cannot be written.
    """
    path = step / _DIRECTORY / f"replica_{replica:05d}.h5"
    partial = path.with_suffix(".partial")
    found = list(responses.values())
    columns = {
        "slots": np.array(list(responses), np.int64),
        "lengths": np.array([len(r.tokens) for r in found], np.int64),
        "cut": np.array([r.cut for r in found], np.bool_),
        "tokens": np.array([t for r in found for t in r.tokens], np.int32),
        "log_probs": np.array([p for r in found for p in r.log_probs], np.float32),
    }
    try:
        path.parent.mkdir(exist_ok=True)
        with GuardedFile(partial) as guarded, h5py.File(guarded, "w", libver="latest") as file:
            file.attrs[_KEY] = key
            for name, column in columns.items():
                # Empty ones cannot have chunks, nor a checksum.
                file.create_dataset(name, data=column, fletcher32=True if len(column) else None)
        partial.replace(path)
    except OSError as error:
        raise CheckpointError(f"{path}: {error}") from None


def read_responses(step: Path) -> Iterator[tuple[str, dict[int, StoredResponse]]]:
    """Key and responses by slot of each replica that left some.

    Raises:
        CheckpointError: a file is damaged.
    """
    for path in sorted((step / _DIRECTORY).glob("replica_*.h5")):
        try:
            with h5py.File(path, "r", locking=False) as file:
                yield str(file.attrs[_KEY]), _responses(file)
        except (OSError, KeyError) as error:
            raise CheckpointError(f"{path}: {error}") from None


def _responses(file: h5py.File) -> dict[int, StoredResponse]:
    names = ("slots", "lengths", "cut", "tokens", "log_probs")
    slots, lengths, cut, tokens, log_probs = (file[name][:] for name in names)
    ends = np.cumsum(lengths)
    return {
        int(slot): StoredResponse(
            tuple(tokens[end - length : end].tolist()),
            tuple(log_probs[end - length : end].tolist()),
            bool(was_cut),
        )
        for slot, length, end, was_cut in zip(slots, lengths, ends, cut, strict=True)
    }
