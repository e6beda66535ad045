"""Files of a step with responses generated ahead for later steps, finished or not.

step_00000006/ahead_00003.h5      of the engine whose first rank is 3
    save_id     attribute: the save that it belongs to
    purposes    attribute: JSON, a list of names
    purpose     (n,) int64, the place in `purposes`
    step, slot, num_slots   (n,) int64, as `ResponseId`
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
from verl_hpc.checkpoint.responses import response_columns, responses_in
from verl_hpc.checkpoint.schema import SAVE_ID
from verl_hpc.checkpoint.tensor_file import write_tensors
from verl_hpc.rollout.partial import ResponseId
from verl_hpc.rollout.protocol import Response

_PURPOSES = "purposes"
_NUMBERS = ("step", "slot", "num_slots")


def write_ahead(path: Path, save_id: str, responses: Mapping[ResponseId, Response]) -> None:
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
        **response_columns(list(responses.values())),
    }
    write_tensors(path, columns, **{SAVE_ID: save_id, _PURPOSES: json.dumps(purposes)})


def read_ahead(
    path: Path, save_id: str, wanted: Callable[[ResponseId], bool]
) -> dict[ResponseId, Response]:
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
        by_name = zip(names, responses_in(file), strict=True)
        return {which: response for which, response in by_name if wanted(which)}


def _names(file: h5py.File) -> list[ResponseId]:
    purposes = [str(name) for name in json.loads(file.attrs[_PURPOSES])]
    numbers = [read_dataset(file, name).tolist() for name in ("purpose", *_NUMBERS)]
    return [ResponseId(purposes[p], *rest) for p, *rest in zip(*numbers, strict=True)]
