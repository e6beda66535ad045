"""Layout of a step directory.

    checkpoints/
      latest -> step_00000010
      step_00000010/
        manifest.json       written last: a directory without it is no step; checksums
        index.h5            every tensor as one virtual dataset, and the table of regions
        rank_00000.h5 ...   the regions each rank wrote, checksummed tile by tile (`tensor_file`)
        ahead_00003.h5 ...  responses of later steps that engines had made (`checkpoint.ahead`)
        state.json          counters, data position, everything small; an imported model has none
        config.yaml         the resolved configuration of the run
        hf/                 config.json and tokenizer, for export

Tensors are named `<component>/<logical tensor>`, such as `actor/model.norm.weight` and
`actor.optimizer/exp_avg/model.norm.weight`. Everything is data: no pickle anywhere.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch

from verl_hpc.layout.shard_map import ITEM_BYTES

FORMAT_VERSION = 4
"""Version of the format that is written and read."""

MANIFEST = "manifest.json"
INDEX = "index.h5"
STATE = "state.json"
CONFIG = "config.yaml"
HF = "hf"
"""Directory of the model's config.json, tokenizer and so on."""
LATEST = "latest"

RANK_FILE = re.compile(r"rank_\d{5,}\.h5")
AHEAD_FILE = re.compile(r"ahead_\d{5,}\.h5")
_HF_DIRECTORY = re.compile(r"hf(_[a-z][a-z0-9_]*)?")
_STEP = re.compile(r"^step_(\d{8,})$")

DTYPES: Mapping[str, torch.dtype] = {name: getattr(torch, name) for name in ITEM_BYTES}
"""Element types by their names in files."""

# HDF5 has no such types; their bits are stored as integers, the type in an attribute.
_AS_BITS = {
    torch.bfloat16: torch.int16,
    torch.float8_e4m3fn: torch.uint8,
    torch.float8_e5m2: torch.uint8,
}
DTYPE_ATTRIBUTE = "dtype"
SUMS = "xxh3_64"
"""Name of the dataset with the checksums of all tiles."""
FIRST_TILE = "first_tile"
"""Attribute of a dataset: index of its first tile among the checksums."""
RANK = "rank"
"""Group in a rank's file for arrays of this rank only."""
SAVE_ID = "save_id"
"""Name of the save's id: a dataset of bytes in a rank's file, an attribute of an engine's."""


def step_name(step: int) -> str:
    return f"step_{step:08d}"


def step_number(path: Path) -> int | None:
    """Return the number in a step directory's name, or None."""
    match = _STEP.match(path.name)
    return int(match.group(1)) if match else None


def rank_file(rank: int) -> str:
    return f"rank_{rank:05d}.h5"


def ahead_file(rank: int) -> str:
    """Return the file name of an engine's responses generated ahead, by the engine's first rank."""
    return f"ahead_{rank:05d}.h5"


def to_stored(tensor: torch.Tensor) -> np.ndarray:
    """Return a contiguous CPU array of the tensor's bits, in a type that HDF5 supports."""
    bits = _AS_BITS.get(tensor.dtype)
    plain = tensor.detach().to("cpu").contiguous()
    # Not Tensor.numpy(): it forbids resizing the storage for good, and offloading resizes it.
    return np.from_dlpack(plain.view(bits) if bits else plain)


def stored_dtype(dtype: torch.dtype) -> np.dtype:
    """Return the element type of `to_stored`'s result."""
    return to_stored(torch.empty(0, dtype=dtype)).dtype


def from_stored(array: np.ndarray, dtype: torch.dtype) -> torch.Tensor:
    """Invert `to_stored`."""
    tensor = torch.from_numpy(array)
    return tensor.view(dtype) if dtype in _AS_BITS else tensor


def fill_value(dtype: np.dtype) -> float | int:
    """Return the value of unwritten elements, which is never plausible: NaN, or all bits set, which
    is NaN in bfloat16 and both float8 types."""
    return float("nan") if dtype.kind == "f" else np.asarray(-1).astype(dtype).item()


def hf_of(component: str) -> str:
    """Return the directory of config.json and so on for a component with its own model."""
    return f"{HF}_{component}"


def is_hf(directory: str) -> bool:
    """Whether a directory name of a step is that of a model's files."""
    return bool(_HF_DIRECTORY.fullmatch(directory))
