"""Data sets. The names of `verl_hpc` that are about data are here, too, where verl's tutorials
import them from."""

from __future__ import annotations

from typing import Any

_NAMES = ("DataProvider", "get_dataloader")


def __getattr__(name: str) -> Any:
    if name not in _NAMES:
        raise AttributeError(f"module 'verl_hpc.data' has no attribute {name!r}")
    import verl_hpc

    return getattr(verl_hpc, name)
