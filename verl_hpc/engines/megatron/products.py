"""Matrix products on CPUs."""

from __future__ import annotations

import torch


def matmul(one: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """`one` (..., n) times `weight` (n, m) by oneDNN, where torch.matmul would take MKL.

    On the shapes of a layer's forward pass and of its input's gradient MKL takes as long or up to
    half as long again (benchmarks/products.py); weights' gradients, of which that is not so, stay
    with it. The two round differently. Not differentiable.
    """
    if one.dtype != torch.float32 or one.numel() == 0 or not torch.backends.mkldnn.is_available():
        return torch.matmul(one, weight)
    found: torch.Tensor = torch.ops.mkldnn._linear_pointwise(one, weight.t(), None, "none", [], "")
    return found
