"""Log-ratios of probabilities, small enough for their exponential."""

from __future__ import annotations

from verl_hpc.algorithms.lazy import torch

_LARGEST = 20.0


def bounded(log_ratio: torch.Tensor) -> torch.Tensor:
    """Clamped to +-20."""
    return log_ratio.clamp(-_LARGEST, _LARGEST)
