"""Batches for torch's DataLoader, where verl's tutorials import them from."""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    if name != "DynamicBatchSampler":
        raise AttributeError(f"module 'verl_hpc.utils.batching' has no attribute {name!r}")
    import verl_hpc

    return verl_hpc.DynamicBatchSampler
