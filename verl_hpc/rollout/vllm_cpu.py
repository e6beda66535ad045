"""What vLLM does otherwise on CPUs: its kernels, on parameters that can be written into."""

from __future__ import annotations

from functools import cache, partial

import torch
import vllm._custom_ops as ops
import vllm.model_executor.layers.utils
from torch.nn.functional import linear
from vllm import ir

from verl_hpc.rollout import vllm_cpu_experts, vllm_cpu_fp8
from verl_hpc.transfer.fp8 import dequantised

_PROVIDER = "verl_hpc"


def prepare() -> None:
    """Before an engine is built: weights stay ordinary parameters.

    Otherwise linear weights are packed into handles that nothing can be written into (small ones in
    bfloat16 by the second), and a tied output layer silently keeps its old values.
    """
    vllm_cpu_experts.keep_plain()
    vllm_cpu_fp8.use_plain_kernel()
    ops._supports_onednn = False
    vllm.model_executor.layers.utils.check_cpu_sgl_kernel = lambda *_: False


@cache
def replace_kernels() -> None:
    """Replace Triton's kernels by those of CPUs, once a process.

    vLLM does so for every engine, each time looking at every name of every module.
    """
    from vllm.platforms.cpu import CpuPlatform

    CpuPlatform.register_triton_kernel_overrides()
    CpuPlatform.register_triton_kernel_overrides = lambda *_: None


def options() -> dict[str, object]:
    """Options of an engine: norms in one kernel, small blocks of the cache, prompts in one piece,
    and, which other attention ignores, a kernel of multi-latent attention that keeps weights where
    they can be written.

    Samples of a prompt share whole blocks of it, and 32 tokens is the smallest that the attention
    takes. A prompt that is cut in two fails: vLLM rewinds the request's generator, which torch
    supports on GPUs only. Whole prompts that are too many for one step wait for the next.
    """
    norms = {name: [_PROVIDER, "native"] for name in ("rms_norm", "fused_add_rms_norm")}
    return {
        "enable_chunked_prefill": False,
        "ir_op_priority": norms,
        "block_size": 32,
        "attention_backend": "CPU_MLA",
    }


def pack_linears(model: torch.nn.Module, fewest_rows: int = 1) -> None:
    """After weights were written: multiply with copies of them in oneDNN's own layout.

    As vLLM does by itself where nothing writes into its weights. The copies take the memory of the
    linear layers once more.

    Args:
        fewest_rows: rows of the smallest product; fewer are repeated.
    """
    for layer in model.modules():
        if hasattr(layer, "cpu_linear") and layer.weight.ndim == 2 and _packs(layer.weight.dtype):
            layer.cpu_linear = _Packed(layer.weight.detach(), fewest_rows)
        kernel = getattr(getattr(layer, "quant_method", None), "fp8_linear", None)
        if isinstance(kernel, vllm_cpu_fp8.PlainFp8Kernel):
            dtype = kernel.config.out_dtype
            weight = dequantised(layer.weight, layer.weight_scale_inv, dtype)
            kernel.copy = _Packed(weight) if _packs(dtype) else partial(_plain, weight)


def _packs(dtype: torch.dtype) -> bool:
    """Whether oneDNN has products of it here: of bfloat16 only with AVX-512."""
    return dtype == torch.float32 or torch.cpu._is_avx512_supported()


def _plain(
    own: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
) -> torch.Tensor:
    """Multiply with a weight (outputs, inputs) that the layer has no other copy of."""
    del weight
    return linear(x, own, bias)


class _Packed:
    """A linear layer's product with a copy of its weight (outputs, inputs)."""

    _MOST_SHAPES = 32
    """Number of input shapes whose kernels are kept, as vLLM chooses."""

    def __init__(self, weight: torch.Tensor, fewest_rows: int = 1) -> None:
        self._fewest_rows = fewest_rows
        self._handler = ops.create_onednn_mm(weight.t(), self._MOST_SHAPES)

    def __call__(
        self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
    ) -> torch.Tensor:
        del weight
        num_rows = len(x)
        if num_rows < self._fewest_rows:
            x = x.repeat(self._fewest_rows, 1)
        return ops.onednn_mm(self._handler, x, bias)[:num_rows]


def _fits(
    x: torch.Tensor, weight: torch.Tensor | None, epsilon: float, variance_size: int | None = None
) -> bool:
    """What vLLM's kernels know."""
    del epsilon
    same = weight is not None and weight.dtype == x.dtype
    return variance_size is None and same and x.is_contiguous()


def _fits_both(
    x: torch.Tensor,
    x_residual: torch.Tensor,
    weight: torch.Tensor | None,
    epsilon: float,
    variance_size: int | None = None,
) -> bool:
    return _fits(x, weight, epsilon, variance_size) and x_residual.is_contiguous()


@ir.ops.rms_norm.register_impl(_PROVIDER, supports_args=_fits)
def _rms_norm(
    x: torch.Tensor, weight: torch.Tensor | None, epsilon: float, variance_size: int | None = None
) -> torch.Tensor:
    del variance_size
    output = torch.empty_like(x)
    torch.ops._C.rms_norm(output, x, weight, epsilon)
    return output


@ir.ops.fused_add_rms_norm.register_impl(_PROVIDER, supports_args=_fits_both, inplace=True)
def _fused_add_rms_norm(
    x: torch.Tensor,
    x_residual: torch.Tensor,
    weight: torch.Tensor | None,
    epsilon: float,
    variance_size: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    del variance_size
    torch.ops._C.fused_add_rms_norm(x, x_residual, weight, epsilon)
    return x, x_residual
