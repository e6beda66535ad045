"""What a step directory looks like.

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
"""1 had no checksums but those of HDF5's chunks."""
READABLE = (3, FORMAT_VERSION)
"""3 has chunks of whole rows, their checksums beside each dataset, and HDF5's fletcher32."""

MANIFEST = "manifest.json"
INDEX = "index.h5"
STATE = "state.json"
CONFIG = "config.yaml"
HF = "hf"
"""Directory of the model's config.json, tokenizer and the like."""
LATEST = "latest"

RANK_FILE = re.compile(r"rank_\d{5,}\.h5")
AHEAD_FILE = re.compile(r"ahead_\d{5,}\.h5")
_HF_DIRECTORY = re.compile(r"hf(_[a-z][a-z0-9_]*)?")
_STEP = re.compile(r"^step_(\d{8,})$")

DTYPES: Mapping[str, torch.dtype] = {name: getattr(torch, name) for name in ITEM_BYTES}
"""Element types by the names that files have for them."""

# HDF5 has no such types; their bits are stored as integers, the type in an attribute.
_AS_BITS = {
    torch.bfloat16: torch.int16,
    torch.float8_e4m3fn: torch.uint8,
    torch.float8_e5m2: torch.uint8,
}
DTYPE_ATTRIBUTE = "dtype"
SUMS = "xxh3_64"
"""Of a file of tensors: the checksums of all tiles. Of a dataset in format 3: of its chunks."""
FIRST_TILE = "first_tile"
"""Of a dataset: the place of its first tile among the checksums."""
RANK = "rank"
"""Group, in a rank's file, of what is of this rank alone."""
SAVE_ID = "save_id"
"""Of a rank's file: the save that it belongs to; a dataset of bytes, in format 3 an attribute."""


def step_name(step: int) -> str:
    return f"step_{step:08d}"


def step_number(path: Path) -> int | None:
    """The step that a directory's name gives, or None."""
    match = _STEP.match(path.name)
    return int(match.group(1)) if match else None


def rank_file(rank: int) -> str:
    return f"rank_{rank:05d}.h5"


def ahead_file(rank: int) -> str:
    """The file of what an engine has made ahead, by the engine's first rank."""
    return f"ahead_{rank:05d}.h5"


def to_stored(tensor: torch.Tensor) -> np.ndarray:
    """A contiguous CPU array of the tensor's bits, in a type that HDF5 has."""
    bits = _AS_BITS.get(tensor.dtype)
    plain = tensor.detach().to("cpu").contiguous()
    # Not Tensor.numpy(): it forbids resizing the storage for good, and offloading resizes it.
    return np.from_dlpack(plain.view(bits) if bits else plain)


def stored_dtype(dtype: torch.dtype) -> np.dtype:
    """The element type of what `to_stored` gives."""
    return to_stored(torch.empty(0, dtype=dtype)).dtype


def from_stored(array: np.ndarray, dtype: torch.dtype) -> torch.Tensor:
    """The inverse of `to_stored`."""
    tensor = torch.from_numpy(array)
    return tensor.view(dtype) if dtype in _AS_BITS else tensor


def fill_value(dtype: np.dtype) -> float | int:
    """What a hole would read as: never a plausible number. Bits all set are NaN in bfloat16 and
    in both float8 types."""
    return float("nan") if dtype.kind == "f" else np.asarray(-1).astype(dtype).item()


def hf_of(component: str) -> str:
    """Directory of the files of a component that has a model of its own."""
    return f"{HF}_{component}"


def is_hf(directory: str) -> bool:
    """Whether a directory of a step has files of a model."""
    return bool(_HF_DIRECTORY.fullmatch(directory))
