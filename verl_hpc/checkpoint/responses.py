"""Finished responses of an interrupted rollout, in the directory of the step that generated them.

    step_00000006/rollout/replica_00003.h5
        key         attribute: what they answer, and how; other responses are of no use
        slots       (n,) int64
        ...         as `response_columns`

The files are not part of the step: they are written after its manifest, and deleted with it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import torch

from verl_hpc.checkpoint.damage import reading
from verl_hpc.checkpoint.datasets import open_file, read_dataset
from verl_hpc.checkpoint.response_columns import response_columns, responses_in
from verl_hpc.checkpoint.tensor_file import write_tensors
from verl_hpc.errors import CheckpointError
from verl_hpc.rollout.protocol import Response

_DIRECTORY = "rollout"
_KEY = "key"


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
