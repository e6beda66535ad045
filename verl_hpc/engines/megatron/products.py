"""Matrix products on CPUs."""

from __future__ import annotations

import torch


def matmul(one: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Multiply `one` (..., n) by `weight` (n, m) with oneDNN; torch.matmul would use MKL.

    For a layer's forward pass and its input's gradient MKL takes up to 1.5 times as long
    (benchmarks/products.py); weight gradients, where it does not, stay with MKL. The two round
    differently. Not differentiable.
    """
    if one.dtype != torch.float32 or one.numel() == 0 or not torch.backends.mkldnn.is_available():
        return torch.matmul(one, weight)
    product: torch.Tensor = torch.ops.mkldnn._linear_pointwise(
        one, weight.t(), None, "none", [], ""
    )
    return product
