"""vLLM's FP8 linear layers on CPUs, computed with dequantised weights.

vLLM's own CPU kernels need AMX, and pack values when a model is loaded, so nothing can be written
into them. Here only weights are quantised, not activations: results differ from a GPU's also by the
rounding of activations.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn.functional import linear
from vllm.model_executor.kernels.linear import _POSSIBLE_FP8_BLOCK_KERNELS
from vllm.model_executor.kernels.linear.scaled_mm import Fp8BlockScaledMMLinearKernel
from vllm.platforms import PlatformEnum

from verl_hpc.transfer.fp8 import dequantised

Product = Callable[[torch.Tensor, torch.Tensor, torch.Tensor | None], torch.Tensor]
"""Function of (inputs, weight, bias) to the layer's output."""


def use_plain_kernel() -> None:
    """Make vLLM use this module's kernel; call before building an engine."""
    kernels: Any = _POSSIBLE_FP8_BLOCK_KERNELS
    kernels[PlatformEnum.CPU] = [PlainFp8Kernel]


class PlainFp8Kernel(Fp8BlockScaledMMLinearKernel):  # type: ignore[misc]
    """Kernel of a linear layer that leaves values and scales as they are written."""

    apply_input_quant = False
    copy: Product | None = None
    """Product with a dequantised copy of the weight, once weights were written."""

    @classmethod
    def is_supported(cls, compute_capability: int | None = None) -> tuple[bool, str | None]:
        del compute_capability
        return True, None

    def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
        del layer

    def apply_weights(
        self, layer: torch.nn.Module, x: torch.Tensor, bias: torch.Tensor | None = None, **_: Any
    ) -> torch.Tensor:
        if self.copy is not None:
            return self.copy(x, layer.weight, bias)
        return linear(x, dequantised(layer.weight, layer.weight_scale_inv, x.dtype), bias)

    def apply_block_scaled_mm(self, **_: torch.Tensor) -> torch.Tensor:
        raise AssertionError("apply_weights multiplies by itself")
