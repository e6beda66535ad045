"""Reading boxes of tensors from files."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import safe_open

from verl_hpc.errors import ModelError
from verl_hpc.layout.box import Box


class Reader(Protocol):
    """Reads parts of tensors from the files of one format."""

    def read(self, file: str, dataset: str, box: Box) -> torch.Tensor:
        """`box` of `dataset`, in coordinates of the dataset; a CPU tensor of the file's dtype."""


class SafetensorsReader:
    """Reads safetensors files; a file stays mapped while the reader lives.

    Raises:
        ModelError: a value that is read is NaN or infinite.
    """

    def __init__(self) -> None:
        self._open = lru_cache(maxsize=64)(_open)

    def read(self, file: str, dataset: str, box: Box) -> torch.Tensor:
        part = self._open(file).get_slice(dataset)
        values: torch.Tensor = part[box.slices] if box.slices else part[()]
        wrong = values.numel() - int(torch.isfinite(values).sum())
        if wrong:
            raise ModelError(
                f"{file}: tensor {dataset} holds {wrong} values that are NaN or infinite; the "
                "weights were damaged, or saved after a training that diverged"
            )
        return values


def _open(file: str) -> Any:
    return safe_open(Path(file), framework="pt", device="cpu")
