"""Layer specifications: plain PyTorch layers, or Transformer Engine's where it is installed.

The PyTorch ones use Megatron-core's extension point (ModuleSpec): its own attention refuses packed
sequences without Transformer Engine, and its own RMSNorm refuses sequence parallelism.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from megatron.core.extensions.transformer_engine import TENorm
from megatron.core.models.gpt.gpt_layer_specs import (
    get_gpt_layer_local_spec,
    get_gpt_layer_with_transformer_engine_spec,
)
from megatron.core.tensor_parallel.layers import RowParallelLinear
from megatron.core.transformer.module import MegatronModule
from megatron.core.transformer.moe import moe_utils
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules
from megatron.core.transformer.transformer_config import TransformerConfig
from megatron.core.transformer.utils import is_layer_window_attention

from verl_hpc.engines.megatron.latent import LatentAttention, ReplicatedLinear
from verl_hpc.engines.megatron.rows import MicroBatches
from verl_hpc.layout.architecture import Architecture

if not hasattr(moe_utils, "te_general_gemm"):
    # Megatron-core 0.16.1 sets it only where Transformer Engine is, and asks for it everywhere.
    moe_utils.te_general_gemm = None


class RMSNorm(torch.nn.RMSNorm):
    """RMSNorm whose gradient is summed over the tensor-parallel group under sequence
    parallelism."""

    def __init__(
        self, config: TransformerConfig, hidden_size: int, eps: float = 1e-5, **_: Any
    ) -> None:
        super().__init__(hidden_size, eps=eps, dtype=config.params_dtype)
        self.weight.sequence_parallel = config.sequence_parallel


def clamped_swiglu(both: torch.Tensor) -> torch.Tensor:
    """SwiGLU of gpt-oss: gate and up, limited to 7, of (T, 2 width) that alternate, (T, width)."""
    gate, up = both[..., ::2].clamp(max=7.0), both[..., 1::2].clamp(-7.0, 7.0)
    return (up + 1) * gate * torch.sigmoid(1.702 * gate)


class BiasedOutput(RowParallelLinear):
    """The last layer of an expert with biases. Megatron-core adds the bias in place, weighted by
    the router, which autograd forbids of what its own layer returns, a view."""

    def forward(self, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        output, bias = super().forward(hidden)
        return output.clone(), bias


class PackedAttention(MegatronModule):
    """Causal attention within each sequence of a packed row, with the sinks and windows that
    Megatron-core's settings give a layer.

    Query, key and value are (T, 1, heads, size), values perhaps of another size; the output is (T,
    1, heads * size of values).
    """

    def __init__(
        self,
        config: TransformerConfig,
        layer_number: int,
        attn_mask_type: Any,
        attention_type: str,
        attention_dropout: float | None = None,
        softmax_scale: float | None = None,
        **_: Any,
    ) -> None:
        super().__init__(config=config)
        del attn_mask_type, attention_type, attention_dropout
        self.scale = softmax_scale
        has_window = is_layer_window_attention(
            config.window_size, config.window_attn_skip_freq, layer_number
        )
        self.window = config.window_size[0] + 1 if has_window else 0
        self.softmax_offset: torch.nn.Parameter | None = None
        if config.softmax_type == "learnable":
            heads = config.num_attention_heads // config.tensor_model_parallel_size
            self.softmax_offset = torch.nn.Parameter(torch.empty(heads, dtype=config.params_dtype))

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor,
        **_: Any,
    ) -> torch.Tensor:
        q, k, v = (t.squeeze(1) for t in (query, key, value))
        attended = MicroBatches.attention(attention_mask).attend(
            q, k, v, self.scale, self.window, self.softmax_offset
        )
        return attended.reshape(query.shape[0], 1, -1)


def local_block_spec(arch: Architecture, layers: Sequence[int]) -> TransformerBlockSubmodules:
    """Return decoder layers, by their indices in the model, in plain PyTorch."""
    dense, mixture = (_local_layer(arch, num_experts) for num_experts in (None, arch.num_experts))
    specs = [dense if arch.is_dense(layer) else mixture for layer in layers]
    return TransformerBlockSubmodules(layer_specs=specs, layer_norm=RMSNorm)


def _local_layer(arch: Architecture, num_experts: int | None) -> ModuleSpec:
    layer = get_gpt_layer_local_spec(
        num_experts or None,
        normalization="RMSNorm",
        qk_layernorm=arch.qk_norm,
        multi_latent_attention=arch.latent is not None,
    )
    parts = layer.submodules
    parts.input_layernorm = parts.pre_mlp_layernorm = RMSNorm
    attention = parts.self_attention.submodules
    attention.core_attention = PackedAttention
    if arch.latent is not None:
        parts.self_attention.module = LatentAttention
        attention.linear_q_down_proj = attention.linear_kv_down_proj = ReplicatedLinear
        attention.q_layernorm = attention.kv_layernorm = RMSNorm
    elif arch.qk_norm:
        attention.q_layernorm = attention.k_layernorm = RMSNorm
    if num_experts and arch.layer_table.clamped_swiglu:
        experts = parts.mlp.submodules.experts.submodules
        experts.activation_func, experts.linear_fc2 = clamped_swiglu, BiasedOutput
    return layer


def transformer_engine_block_spec(
    arch: Architecture, layers: Sequence[int]
) -> TransformerBlockSubmodules:
    """Return decoder layers, by their indices in the model, of Transformer Engine modules, which
    FP8 needs; a rank's experts are multiplied in one call."""
    dense, mixture = (
        _transformer_engine_layer(arch, num_experts) for num_experts in (None, arch.num_experts)
    )
    specs = [dense if arch.is_dense(layer) else mixture for layer in layers]
    return TransformerBlockSubmodules(layer_specs=specs, layer_norm=TENorm)


def _transformer_engine_layer(arch: Architecture, num_experts: int | None) -> ModuleSpec:
    latent = arch.latent is not None
    layer = get_gpt_layer_with_transformer_engine_spec(
        num_experts or None,
        moe_grouped_gemm=bool(num_experts),
        qk_layernorm=arch.qk_norm or latent,
        multi_latent_attention=latent,
    )
    if latent:
        layer.submodules.self_attention.module = LatentAttention
    return layer
