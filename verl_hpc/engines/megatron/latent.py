"""Multi-head latent attention on packed rows (MLA; DeepSeek-V2, arXiv 2405.04434, section 2.1).

Megatron-core's own takes positions 0, 1, 2, ... of a row, or asks the device where sequences begin,
and it splits the projections to latents over tensor-parallel ranks, unless they are Transformer
Engine's.
"""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import torch
from megatron.core.transformer import multi_latent_attention
from megatron.core.transformer.multi_latent_attention import MLASelfAttention
from megatron.core.transformer.transformer_config import TransformerConfig

from verl_hpc.engines.megatron.rotary import PackedRotaryEmbedding, rotary_scaling
from verl_hpc.engines.megatron.rows import MicroBatches
from verl_hpc.layout.architecture import Architecture


class ReplicatedLinear(torch.nn.Linear):
    """A linear layer that every tensor-parallel rank has whole, for its own tokens under sequence
    parallelism; (T or T/tp, 1, inputs) to (T or T/tp, 1, outputs)."""

    def __init__(self, inputs: int, outputs: int, config: TransformerConfig, **_: Any) -> None:
        super().__init__(inputs, outputs, bias=False, dtype=config.params_dtype)
        self.weight.sequence_parallel = config.sequence_parallel

    def forward(self, hidden: torch.Tensor) -> tuple[torch.Tensor, None]:
        return super().forward(hidden), None


class LatentAttention(MLASelfAttention):
    """Megatron-core's latent attention with the positions of its packed row."""

    rotary_pos_emb: LatentRotary

    def __init__(self, config: TransformerConfig, submodules: Any, **kwargs: Any) -> None:
        # A layer that is not split is accepted where it is of this class alone.
        with patch.object(multi_latent_attention, "TELinear", submodules.linear_kv_down_proj):
            super().__init__(config, submodules, **kwargs)

    def forward(
        self,
        hidden_states: torch.Tensor,
        attention_mask: torch.Tensor | None,
        packed_seq_params: Any = None,
        **kwargs: Any,
    ) -> tuple[torch.Tensor, None]:
        # Not before the pass of the whole chunk: recomputation comes when others have passed.
        called = {"attention_mask": attention_mask, "packed_seq_params": packed_seq_params}
        row = MicroBatches.of_call(called).row
        self.rotary_pos_emb.positions = row.local(row.positions[0])[None]
        output: tuple[torch.Tensor, None] = super().forward(
            hidden_states, attention_mask, packed_seq_params=packed_seq_params, **kwargs
        )
        return output

    def get_query_key_value_tensors(
        self,
        hidden_states: torch.Tensor,
        key_value_states: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        packed_seq_params: Any = None,
        inference_context: Any = None,
    ) -> tuple[torch.Tensor, ...]:
        """Return queries, keys and values, (T, 1, heads, size), or (T, heads, size) for Transformer
        Engine's attention, and the two latents."""
        *heads, queries, keys = super().get_query_key_value_tensors(
            hidden_states, key_value_states, position_ids, None, inference_context
        )
        if packed_seq_params is not None:
            heads = [tensor.squeeze(1) for tensor in heads]
        return (*heads, queries, keys)


class LatentRotary(PackedRotaryEmbedding):
    """Angles of a packed row's positions, with the factor of their sines and cosines."""

    factor = 1.0

    def forward(self, *_: Any, **__: Any) -> tuple[torch.Tensor, float]:  # type: ignore[override]
        return super().forward(), self.factor


def latent_settings(arch: Architecture) -> dict[str, Any]:
    """Return Megatron-core's settings of latent attention (`MLATransformerConfig`)."""
    latent = arch.latent
    assert latent is not None
    scaling = arch.rope_scaling or {}
    return {
        "q_lora_rank": latent.q_rank,
        "kv_lora_rank": latent.kv_rank,
        "qk_head_dim": latent.nope_size,
        "qk_pos_emb_head_dim": latent.rope_size,
        "v_head_dim": latent.value_size,
        # Norms of the latents.
        "qk_layernorm": True,
        # Rotary embeddings are replaced (`set_latent_rotary`); this type's have a factor.
        "rope_type": "yarn",
        "rotary_base": arch.rope_theta,
        # Only attention's scale is computed of these.
        "rotary_scaling_factor": scaling.get("factor", 1.0),
        "mscale_all_dim": scaling.get("mscale_all_dim") or 0.0,
    }


def set_latent_rotary(model: Any, config: TransformerConfig, arch: Architecture) -> None:
    """Give all layers of a chunk one rotary embedding, with transformers' frequencies."""
    rotary = LatentRotary(
        kv_channels=arch.rotated_size,
        rotary_percent=1.0,
        rotary_base=arch.rope_theta,
        use_cpu_initialization=config.use_cpu_initialization,
    )
    if (scaling := rotary_scaling(arch)) is not None:
        rotary.inv_freq, rotary.factor = scaling[0].to(rotary.inv_freq.device), scaling[1]
    for layer in model.decoder.layers:
        layer.self_attention.rotary_pos_emb = rotary
