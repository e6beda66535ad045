"""Layer specifications: plain PyTorch layers, or Transformer Engine's where it is installed.

The PyTorch ones use Megatron-core's extension point (ModuleSpec): its own attention refuses packed
sequences without Transformer Engine, and its own RMSNorm refuses sequence parallelism.
"""

from __future__ import annotations

from typing import Any

import torch
from megatron.core.models.common.embeddings.rotary_pos_embedding import RotaryEmbedding
from megatron.core.models.gpt.gpt_layer_specs import (
    get_gpt_layer_local_spec,
    get_gpt_layer_with_transformer_engine_spec,
)
from megatron.core.transformer.module import MegatronModule
from megatron.core.transformer.moe import moe_utils
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.transformer_block import (
    TransformerBlockSubmodules,
    get_num_layers_to_build,
)
from megatron.core.transformer.transformer_config import TransformerConfig

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


class PackedAttention(MegatronModule):
    """Causal attention within each sequence of a packed row.

    Query, key and value are (T, 1, heads, size); the output is (T, 1, heads * size).
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
        del layer_number, attn_mask_type, attention_type, attention_dropout
        self.scale = softmax_scale

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor,
        **_: Any,
    ) -> torch.Tensor:
        q, k, v = (t.squeeze(1) for t in (query, key, value))
        attended = MicroBatches.attention(attention_mask).attend(q, k, v, self.scale)
        return attended.reshape(query.shape[0], 1, -1)


class PackedRotaryEmbedding(RotaryEmbedding):
    """Rotary angles for the positions of a packed row, instead of 0, 1, 2, ..."""

    positions: torch.Tensor
    """Positions, (1, T), set before each forward pass."""

    def get_rotary_seq_len(self, *_: Any, **__: Any) -> int:
        return 0

    def forward(self, *_: Any, **__: Any) -> torch.Tensor:
        """Return (T, 1, 1, size) angles."""
        frequencies: torch.Tensor = self.inv_freq.to(self.positions.device)
        angles = torch.outer(self.positions[0].to(frequencies.dtype), frequencies)
        both = (
            angles.repeat_interleave(2, dim=-1)
            if self.rotary_interleaved
            else torch.cat((angles, angles), dim=-1)
        )
        return both[:, None, None, :]


def local_block_spec(
    config: TransformerConfig, vp_stage: int | None, arch: Architecture, pp_rank: int
) -> TransformerBlockSubmodules:
    """Return the decoder layers of one pipeline chunk in plain PyTorch."""
    layer = get_gpt_layer_local_spec(
        arch.num_experts or None, normalization="RMSNorm", qk_layernorm=arch.qk_norm
    )
    parts = layer.submodules
    parts.input_layernorm = parts.pre_mlp_layernorm = RMSNorm
    attention = parts.self_attention.submodules
    attention.core_attention = PackedAttention
    if arch.qk_norm:
        attention.q_layernorm = attention.k_layernorm = RMSNorm
    num_layers = get_num_layers_to_build(config, vp_stage=vp_stage, pp_rank=pp_rank)
    return TransformerBlockSubmodules(layer_specs=[layer] * num_layers, layer_norm=RMSNorm)


def transformer_engine_spec(qk_norm: bool, num_experts: int) -> ModuleSpec:
    """Return a decoder layer of Transformer Engine modules, which FP8 needs; a rank's experts are
    multiplied in one call."""
    return get_gpt_layer_with_transformer_engine_spec(
        num_experts or None, moe_grouped_gemm=num_experts > 0, qk_layernorm=qk_norm
    )
