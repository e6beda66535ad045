"""Batches for torch's DataLoader, where verl's tutorials import them from."""

from __future__ import annotations

from typing import TYPE_CHECKING

from verl_hpc.lazy_names import lazy_names

if TYPE_CHECKING:
    from verl_hpc import DynamicBatchSampler as DynamicBatchSampler
else:
    from verl_hpc import ELSEWHERE

    __getattr__, __dir__ = lazy_names(__name__, {"DynamicBatchSampler": "verl_hpc"}, ELSEWHERE)
