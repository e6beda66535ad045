"""Reading boxes of tensors from files."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import safe_open

from verl_hpc.layout.box import Box


class Reader(Protocol):
    """Reads parts of tensors from the files of one format."""

    def read(self, file: str, dataset: str, box: Box) -> torch.Tensor:
        """`box` of `dataset`, in coordinates of the dataset; a CPU tensor of the file's dtype."""


class SafetensorsReader:
    """Reads safetensors files; a file stays mapped while the reader lives."""

    def __init__(self) -> None:
        self._open = lru_cache(maxsize=64)(_open)

    def read(self, file: str, dataset: str, box: Box) -> torch.Tensor:
        part = self._open(file).get_slice(dataset)
        return part[box.slices] if box.slices else part[()]


def _open(file: str) -> Any:
    return safe_open(Path(file), framework="pt", device="cpu")
