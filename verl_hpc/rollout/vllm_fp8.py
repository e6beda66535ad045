"""vLLM with block-quantised weights: its settings, and a check of its kernels.

Some of vLLM's kernels repack or requantise, when a model is loaded, the memory that the trainer
later writes into; those weights would be misread without an error. In vLLM 0.32
(`model_executor/kernels/linear/scaled_mm`, `layers/fused_moe/oracle/fp8.py`) DeepGEMM makes scales
powers of two and reorders them, and so does FlashInfer, which falls back on it; Marlin, Humming and
the CPU kernels pack values. CUTLASS, Triton, B12x and PyTorch leave both unchanged.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from vllm.model_executor.layers.fused_moe.oracle.fp8 import Fp8MoeBackend
from vllm.model_executor.layers.quantization.kv_cache import KVCacheScaleParameter
from vllm.model_executor.layers.quantization.utils.w8a8_utils import CUTLASS_BLOCK_FP8_SUPPORTED
from vllm.model_executor.model_loader import register_model_loader
from vllm.model_executor.model_loader.dummy_loader import DummyModelLoader

from verl_hpc.config.rollout import RolloutConfig
from verl_hpc.errors import ConfigError
from verl_hpc.layout.architecture import Architecture
from verl_hpc.layout.quantization import BLOCK, ignored_modules

_LOAD_FORMAT = "verl_hpc_fp8"
_LEAVE_WEIGHTS = (
    "B12xFp8BlockScaledMMKernel",
    "BlockWiseTorchFP8ScaledMMLinearKernel",
    "CutlassFp8BlockScaledMMKernel",
    "PlainFp8Kernel",
    "TritonFp8BlockScaledMMKernel",
)
"""Kernels of linear layers that leave weights and scales unchanged."""
_LEAVE_EXPERTS = (Fp8MoeBackend.TRITON, Fp8MoeBackend.VLLM_CUTLASS)


def options(config: RolloutConfig, arch: Architecture, device: str) -> dict[str, Any]:
    """Return vLLM's arguments for rollout.quantization and rollout.kv_cache_dtype.

    Raises:
        ConfigError: experts on CPU ranks.
    """
    arguments: dict[str, Any] = {"kv_cache_dtype": config.kv_cache_dtype}
    if config.quantization is None:
        return arguments
    arguments |= {
        "quantization": config.quantization,
        "hf_overrides": {"quantization_config": _as_of_a_checkpoint(config, arch)},
        "load_format": _LOAD_FORMAT,
    }
    if device != "cpu":
        backend = "cutlass" if CUTLASS_BLOCK_FP8_SUPPORTED else "triton"
        return arguments | {"linear_backend": backend, "moe_backend": "triton"}
    if arch.is_moe:
        raise ConfigError(
            "rollout.quantization = fp8: vLLM's experts in FP8 need AMX on CPU ranks, and pack "
            "weights so that nothing can be written into them; leave it out, or generate on GPUs"
        )
    return arguments


def _as_of_a_checkpoint(config: RolloutConfig, arch: Architecture) -> dict[str, Any]:
    """Return the quantization_config that a checkpoint quantised like this has in its
    config.json."""
    return {
        "quant_method": "fp8",
        "fmt": "e4m3",
        "activation_scheme": "dynamic",
        "weight_block_size": [BLOCK, BLOCK],
        "ignored_layers": [
            f"model.layers.{layer}.{module}"
            for layer in range(arch.num_layers)
            for module in ignored_modules(arch, config.ignored_layers, layer)
        ],
    }


@register_model_loader(_LOAD_FORMAT)
class _NoWeights(DummyModelLoader):
    """Loads random weights but no key/value scales, for which vLLM then takes 1, also in CUDA
    graphs; with the dummy loader they would be random."""

    def load_weights(self, model: torch.nn.Module, model_config: Any) -> None:
        super().load_weights(model, model_config)
        for parameter in model.parameters():
            if isinstance(parameter, KVCacheScaleParameter):
                parameter.data.fill_(-1.0)


def check_kernels(model: torch.nn.Module) -> None:
    """Refuse an engine whose kernels change the layout or values of written weights.

    Raises:
        ConfigError: a kernel does so; the message names it.
    """
    for name, advice in _kernels(model):
        raise ConfigError(
            f"rollout.quantization = fp8: vLLM chose {name}, which packs or quantises anew what "
            f"the trainer writes into; {advice}"
        )


def _kernels(model: torch.nn.Module) -> Iterator[tuple[str, str]]:
    """Yield refused kernels, with advice for each."""
    for layer in model.modules():
        method = getattr(layer, "quant_method", None)
        kernel = type(getattr(method, "fp8_linear", None)).__name__
        if hasattr(method, "fp8_linear") and kernel not in _LEAVE_WEIGHTS:
            yield kernel, "leave out rollout.engine_options.linear_backend, or choose triton"
        backend = getattr(method, "fp8_backend", None)
        if backend is not None and backend not in _LEAVE_EXPERTS:
            yield backend.value, "leave experts out with rollout.ignored_layers"
