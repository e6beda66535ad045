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
import torch

from verl_hpc.checkpoint.damage import reading
from verl_hpc.checkpoint.datasets import open_file, read_dataset
from verl_hpc.checkpoint.tensor_file import write_tensors
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
        "slots": torch.tensor(list(responses), dtype=torch.int64),
        "lengths": torch.tensor([len(r.tokens) for r in found], dtype=torch.int64),
        "cut": torch.tensor([r.cut for r in found], dtype=torch.bool),
        "tokens": torch.tensor([t for r in found for t in r.tokens], dtype=torch.int32),
        "log_probs": torch.tensor([p for r in found for p in r.log_probs], dtype=torch.float32),
    }
    try:
        path.parent.mkdir(exist_ok=True)
        write_tensors(partial, columns, **{_KEY: key})
        partial.replace(path)
    except OSError as error:
        raise CheckpointError(f"{path}: {error}") from None


def read_responses(step: Path) -> Iterator[tuple[str, dict[int, StoredResponse]]]:
    """Key and responses by slot of each replica that left some.

    Raises:
        DamageError: a file is not as it was written.
    """
    for path in sorted((step / _DIRECTORY).glob("replica_*.h5")):
        with reading(path), open_file(path) as file:
            found = str(file.attrs[_KEY]), _responses(file)
        yield found


def _responses(file: h5py.File) -> dict[int, StoredResponse]:
    names = ("slots", "lengths", "cut", "tokens", "log_probs")
    slots, lengths, cut, tokens, log_probs = (read_dataset(file, name).numpy() for name in names)
    ends = np.cumsum(lengths)
    total = int(ends[-1]) if len(ends) else 0
    if (lengths < 0).any() or not len(tokens) == len(log_probs) == total:
        raise ValueError(f"has {len(tokens)} tokens, {total} were written")
    return {
        int(slot): StoredResponse(
            tuple(tokens[end - length : end].tolist()),
            tuple(log_probs[end - length : end].tolist()),
            bool(was_cut),
        )
        for slot, length, end, was_cut in zip(slots, lengths, ends, cut, strict=True)
    }
