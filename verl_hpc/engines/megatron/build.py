"""Build Megatron-core's model chunks from an architecture and a layout."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from megatron.core import tensor_parallel
from megatron.core.models.gpt import GPTModel
from megatron.core.transformer.enums import AttnBackend
from megatron.core.transformer.module import Float16Module
from megatron.core.transformer.transformer_config import MLATransformerConfig, TransformerConfig
from torch.nn.functional import silu

from verl_hpc.config.model import Fp8Config, ModelConfig, ParallelConfig
from verl_hpc.engines.megatron.experts import expert_settings
from verl_hpc.engines.megatron.latent import latent_settings, set_latent_rotary
from verl_hpc.engines.megatron.parallel import MegatronGroups
from verl_hpc.engines.megatron.precision import choose_backend, has_apex_gradient_fusion
from verl_hpc.engines.megatron.rotary import PackedRotaryEmbedding, rotary_scaling, softmax_scale
from verl_hpc.engines.megatron.spec import local_block_spec, transformer_engine_block_spec
from verl_hpc.layout.architecture import Architecture
from verl_hpc.layout.heads import HEAD_TENSORS, Head
from verl_hpc.layout.megatron import Backend, TrainLayout, megatron_shard_map, padded_vocab
from verl_hpc.layout.pipeline import layers_per_stage, stage_layers
from verl_hpc.layout.shard_map import ShardMap

VOCAB_MULTIPLE = 64


class ValueHead(torch.nn.Linear):
    """An output layer of one number per token, replicated over tensor-parallel ranks.

    Replaces GPTModel.output_layer: (T or T/tp, 1, hidden) to (T, 1, 1) float32.
    """

    def __init__(self, config: TransformerConfig, group: dist.ProcessGroup) -> None:
        super().__init__(config.hidden_size, 1, bias=False, dtype=config.params_dtype)
        self.group = group
        self.sequence_parallel = config.sequence_parallel
        self.weight.sequence_parallel = config.sequence_parallel

    def forward(self, hidden: torch.Tensor, **_: Any) -> tuple[torch.Tensor, None]:
        values = super().forward(hidden).float()
        if self.sequence_parallel:
            values = tensor_parallel.gather_from_sequence_parallel_region(
                values, tensor_parallel_output_grad=False, group=self.group
            )
        return values, None


def transformer_config(
    arch: Architecture,
    layout: TrainLayout,
    *,
    dtype: torch.dtype,
    parallel: ParallelConfig,
    fp8: Fp8Config | None,
    backend: Backend,
) -> TransformerConfig:
    """Return Megatron-core's settings for this model."""
    on_gpu = torch.cuda.is_available()
    fused = backend == "transformer_engine"
    settings = _recompute_settings(parallel) | expert_settings(arch, layout, fused)
    if fp8 is not None:
        settings |= {"fp8": fp8.format, "fp8_recipe": fp8.recipe}
    if arch.latent is None:
        settings["qk_layernorm"] = arch.qk_norm
    else:
        settings |= latent_settings(arch)
    if layout.pp > 1:
        settings["pipeline_model_parallel_layout"] = pipeline_layout(arch, layout)
    kind = TransformerConfig if arch.latent is None else MLATransformerConfig
    return kind(
        num_layers=arch.num_layers,
        hidden_size=arch.hidden_size,
        ffn_hidden_size=arch.dense_ffn_size or arch.ffn_size,
        num_attention_heads=arch.num_heads,
        num_query_groups=arch.num_kv_heads,
        kv_channels=arch.head_size,
        normalization="RMSNorm",
        layernorm_epsilon=arch.norm_epsilon,
        gated_linear_unit=True,
        activation_func=silu,
        # Megatron-core calls an activation of a layer's own so.
        use_te_activation_func=arch.layer_table.clamped_swiglu,
        add_bias_linear=arch.linear_bias,
        add_qkv_bias=arch.qkv_bias,
        softmax_type="learnable" if arch.sinks else "vanilla",
        window_size=(arch.window - 1, 0) if arch.window else None,
        window_attn_skip_freq=arch.full_attention_every or None,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        tensor_model_parallel_size=layout.tp,
        pipeline_model_parallel_size=layout.pp,
        virtual_pipeline_model_parallel_size=layout.vpp if layout.vpp > 1 else None,
        context_parallel_size=layout.cp,
        sequence_parallel=parallel.sequence_parallel,
        params_dtype=dtype,
        pipeline_dtype=dtype,
        bf16=dtype == torch.bfloat16,
        use_cpu_initialization=not on_gpu,
        # Weights always come from a transfer; what is not filled (padding) must be zero.
        perform_initialization=False,
        # Losses come with their global normaliser, so gradients are summed, not averaged.
        calculate_per_token_loss=True,
        variable_seq_lengths=True,
        # Megatron-core's check for variable lengths needs this even for dense models; its other
        # dispatcher wants rows of one length.
        moe_token_dispatcher_type="alltoall",
        # With two stages of several chunks, batched sends and receives to the same peer are
        # paired by order and silently mixed up.
        batch_p2p_comm=layout.vpp == 1,
        overlap_p2p_comm=layout.vpp > 1,
        batch_p2p_sync=False,
        softmax_scale=softmax_scale(arch),
        attention_backend=AttnBackend.auto if fused else AttnBackend.local,
        masked_softmax_fusion=False,
        bias_activation_fusion=on_gpu and not arch.layer_table.clamped_swiglu,
        bias_dropout_fusion=on_gpu,
        rotary_interleaved=arch.rotary_interleaved,
        # Megatron-core calls Transformer Engine's kernel of packed rows without saying this.
        apply_rope_fusion=fused and not arch.rotary_interleaved and arch.latent is None,
        # The output layer needs Apex for it; Transformer Engine's do not (`fuse_weight_gradients`).
        gradient_accumulation_fusion=on_gpu and has_apex_gradient_fusion(),
        cross_entropy_loss_fusion=False,
        **settings,
    )


def _recompute_settings(parallel: ParallelConfig) -> dict[str, Any]:
    if parallel.recompute == "none":
        return {}
    settings: dict[str, Any] = {"recompute_granularity": parallel.recompute}
    if parallel.recompute == "full":
        return settings | {
            "recompute_method": parallel.recompute_method or "uniform",
            "recompute_num_layers": parallel.recompute_num_layers or 1,
        }
    return settings | {"recompute_modules": list(parallel.recompute_modules or ["mlp"])}


def pipeline_layout(arch: Architecture, layout: TrainLayout) -> list[list[str]]:
    """Return our layers per stage as Megatron-core expects them: one list per virtual stage."""
    rows = layers_per_stage(arch.num_layers, layout.pp, layout.vpp)
    stages = [["decoder"] * count for row in rows for count in row]
    stages[0].insert(0, "embedding")
    stages[-1].append("loss")
    return stages


def engine_shard_map(
    arch: Architecture, layout: TrainLayout, model: ModelConfig, head: Head
) -> ShardMap:
    """Return the shard map of this model's chunks; any rank may call it."""
    return megatron_shard_map(
        arch,
        layout,
        backend=choose_backend(model, arch),
        head=head,
        dtype=model.dtype,
        vocab_multiple=VOCAB_MULTIPLE,
    )


def build_chunks(
    config: TransformerConfig,
    arch: Architecture,
    groups: MegatronGroups,
    *,
    backend: Backend,
    head: Head,
) -> list[torch.nn.Module]:
    """Build this rank's model chunks, one per virtual pipeline stage, with uninitialised
    parameters."""
    chunks: list[torch.nn.Module] = [
        _build_chunk(config, arch, groups, backend, head, stage)
        for stage in range(groups.layout.vpp)
    ]
    if config.bf16:
        chunks = [Float16Module(config, chunk) for chunk in chunks]
    return chunks


def _build_chunk(
    config: TransformerConfig,
    arch: Architecture,
    groups: MegatronGroups,
    backend: Backend,
    head: Head,
    chunk: int,
) -> GPTModel:
    layout = groups.layout
    to_one_number = head in HEAD_TENSORS
    counts = layers_per_stage(arch.num_layers, layout.pp, layout.vpp)
    layers = stage_layers(counts, groups.pp.rank(), chunk)
    block_spec = local_block_spec if backend == "local" else transformer_engine_block_spec
    model = GPTModel(
        config,
        block_spec(arch, layers),
        vocab_size=padded_vocab(arch.vocab_size, layout.tp, VOCAB_MULTIPLE),
        max_sequence_length=arch.max_positions,
        pre_process=groups.pp.rank() == 0 and chunk == 0,
        post_process=groups.pp.rank() == layout.pp - 1 and chunk == layout.vpp - 1,
        parallel_output=True,
        # A projection to one number has nothing to share.
        share_embeddings_and_output_weights=arch.tied_embeddings and not to_one_number,
        position_embedding_type="rope",
        rotary_percent=arch.rotated_share,
        rotary_base=arch.rope_theta,
        vp_stage=chunk if layout.vpp > 1 else None,
    )
    if arch.latent is None:
        _set_rotary(model, config, arch, backend)
    else:
        set_latent_rotary(model, config, arch)
    if to_one_number and model.post_process:
        model.output_layer = ValueHead(config, groups.tp)
    if config.use_cpu_initialization:
        return model
    return model.cuda(torch.cuda.current_device())


def _set_rotary(
    model: GPTModel, config: TransformerConfig, arch: Architecture, backend: Backend
) -> None:
    """Give a chunk the rotary embedding of packed rows, and the frequencies of scaled positions."""
    if backend == "local":
        model.rotary_pos_emb = PackedRotaryEmbedding(
            kv_channels=arch.head_size,
            rotary_percent=arch.rotated_share,
            rotary_interleaved=arch.rotary_interleaved,
            rotary_base=arch.rope_theta,
            use_cpu_initialization=config.use_cpu_initialization,
        )
    if (scaling := rotary_scaling(arch)) is not None:
        rotary = model.rotary_pos_emb
        rotary.inv_freq = scaling[0].to(rotary.inv_freq.device)
