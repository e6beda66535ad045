"""Files of a step with responses generated ahead for later steps, finished or not.

step_00000006/ahead_00003.h5      of the engine whose first rank is 3
    save_id     attribute: the save that it belongs to
    purposes    attribute: JSON, a list of names
    purpose     (n,) int64, the place in `purposes`
    step, slot, num_slots   (n,) int64, as `ResponseId`
    versions    (sum of lengths,) int32, of the weights that sampled each token
    ...         the columns of `checkpoint.responses`
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import h5py
import torch

from verl_hpc.checkpoint.damage import reading
from verl_hpc.checkpoint.datasets import open_file, read_dataset
from verl_hpc.checkpoint.responses import response_columns, responses_in, split
from verl_hpc.checkpoint.schema import SAVE_ID
from verl_hpc.checkpoint.tensor_file import write_tensors
from verl_hpc.rollout.partial import ResponseId, VersionedResponse

_PURPOSES = "purposes"
_NUMBERS = ("step", "slot", "num_slots")


def write_ahead(
    path: Path, save_id: str, responses: Mapping[ResponseId, VersionedResponse]
) -> None:
    """Write an engine's file of responses.

    Raises:
        OSError: it cannot be written.
    """
    purposes = sorted({which.purpose for which in responses})
    columns = {
        "purpose": torch.tensor([purposes.index(w.purpose) for w in responses], dtype=torch.int64),
        **{
            name: torch.tensor([getattr(w, name) for w in responses], dtype=torch.int64)
            for name in _NUMBERS
        },
        "versions": torch.tensor(
            [v for tagged in responses.values() for v in tagged.versions], dtype=torch.int32
        ),
        **response_columns([tagged.response for tagged in responses.values()]),
    }
    write_tensors(path, columns, **{SAVE_ID: save_id, _PURPOSES: json.dumps(purposes)})


def read_ahead(
    path: Path, save_id: str, wanted: Callable[[ResponseId], bool]
) -> dict[ResponseId, VersionedResponse]:
    """Read the wanted responses of an engine's file.

    Raises:
        DamageError: it is damaged, or belongs to another save.
    """
    with reading(path), open_file(path) as file:
        if file.attrs[SAVE_ID] != save_id:
            raise ValueError("of another save than the rest of the step")
        names = _names(file)
        if not any(map(wanted, names)):
            return {}
        responses = responses_in(file)
        lengths = [len(response.tokens) for response in responses]
        versions = split(read_dataset(file, "versions").numpy(), lengths)
        return {
            which: VersionedResponse(response, tuple(of_tokens.tolist()))
            for which, response, of_tokens in zip(names, responses, versions, strict=True)
            if wanted(which)
        }


def _names(file: h5py.File) -> list[ResponseId]:
    purposes = [str(name) for name in json.loads(file.attrs[_PURPOSES])]
    numbers = [read_dataset(file, name).tolist() for name in ("purpose", *_NUMBERS)]
    return [ResponseId(purposes[p], *rest) for p, *rest in zip(*numbers, strict=True)]
