"""Build a sharded transformers model, with the checkpoint's names, from an architecture."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from transformers import AutoConfig, AutoModel, PreTrainedConfig

from verl_hpc.config.fsdp import FsdpConfig
from verl_hpc.config.model import ModelConfig, ParallelConfig
from verl_hpc.engines.fsdp.attention import NAME
from verl_hpc.engines.fsdp.kernels import Kernels, apply_liger
from verl_hpc.engines.shared.groups import LayoutGroups
from verl_hpc.layout.architecture import Architecture
from verl_hpc.layout.fsdp import kept_dtype
from verl_hpc.layout.heads import HEAD_TENSORS, Head


def transformers_config(arch: Architecture) -> PreTrainedConfig:
    """Return transformers' settings for this model, without dropout, as in every engine."""
    rope: Mapping[str, Any] = arch.rope_scaling or {"rope_type": "default"}
    config = AutoConfig.for_model(
        arch.family,
        num_hidden_layers=arch.num_layers,
        hidden_size=arch.hidden_size,
        intermediate_size=arch.ffn_size,
        num_attention_heads=arch.num_heads,
        num_key_value_heads=arch.num_kv_heads,
        head_dim=arch.head_size,
        vocab_size=arch.vocab_size,
        rms_norm_eps=arch.norm_epsilon,
        rope_parameters={**rope, "rope_theta": arch.rope_theta},
        max_position_embeddings=arch.max_positions,
        sliding_window=None,  # windows that would cut anything off are refused with the model
        pad_token_id=None,  # whose embedding transformers would not train
    )
    for name in config.to_dict():
        if name.endswith(("dropout", "pdrop")):
            setattr(config, name, 0.0)
    return config


class Decoder(torch.nn.Module):
    """A decoder and its head; parameters have the names of the checkpoint.

    Args:
        config: settings of the decoder.
        head: the output layer.
        tied: whether the vocabulary's projection is the embedding.
        dtype: of the parameters.
    """

    def __init__(
        self, config: PreTrainedConfig, head: Head, tied: bool, dtype: torch.dtype
    ) -> None:
        super().__init__()
        self.model = AutoModel.from_config(config, dtype=dtype, attn_implementation=NAME)
        self._head = None
        if head in HEAD_TENSORS or not tied:
            self._head = HEAD_TENSORS.get(head, "lm_head.weight").removesuffix(".weight")
            size = 1 if head in HEAD_TENSORS else config.vocab_size
            output = torch.nn.Linear(config.hidden_size, size, bias=False, dtype=dtype)
            self.add_module(self._head, output)

    def forward(self, tokens: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Map (1, T) int64 tokens and positions to (T, vocabulary) or (T, 1)."""
        decoded = self.model(input_ids=tokens, position_ids=positions, use_cache=False)
        hidden = decoded.last_hidden_state[0]
        if self._head is None:
            return torch.nn.functional.linear(hidden, self.model.embed_tokens.weight)
        output: torch.Tensor = self.get_submodule(self._head)(hidden)
        return output


def build_decoder(
    arch: Architecture,
    groups: LayoutGroups,
    model: ModelConfig,
    parallel: ParallelConfig,
    *,
    head: Head,
    trainable: bool,
    kernels: Kernels,
) -> Decoder:
    """Build a decoder with its parameters sharded over the ranks of a layout, all zero.

    No rank ever holds the whole model: memory is allocated after sharding.
    """
    config, settings = transformers_config(arch), parallel.fsdp or FsdpConfig()
    dtype: torch.dtype = getattr(torch, kept_dtype(model.dtype, trainable))
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    with torch.device("meta"):
        decoder = Decoder(config, head, arch.tied_embeddings, dtype)
    decoder.requires_grad_(trainable)
    if kernels.liger:
        apply_liger(decoder.model)
    if parallel.recompute == "full":
        decoder.model.gradient_checkpointing_enable({"use_reentrant": False})
    if kernels.compiled:
        for layer in decoder.model.layers:
            layer.compile(dynamic=True)
    _shard(decoder, groups, _precision(model, settings, trainable), settings, device)
    decoder.to_empty(device=device)
    # A table that no checkpoint has.
    decoder.model.rotary_emb = type(decoder.model.rotary_emb)(config).to(device)
    for parameter in decoder.parameters():
        local_part(parameter).zero_()
    return decoder


def local_part(parameter: torch.Tensor) -> torch.Tensor:
    """Return this rank's rows of a sharded parameter or gradient, sharing its memory."""
    assert isinstance(parameter, DTensor)
    local: torch.Tensor = parameter.detach().to_local()
    return local


def sharded_modules(decoder: Decoder) -> list[FSDPModule]:
    """Return the modules that gather their parameters as one, in the order of a forward pass: the
    root, which has all parameters outside layers, and then each layer."""
    return [module for module in decoder.modules() if isinstance(module, FSDPModule)]


def _precision(model: ModelConfig, settings: FsdpConfig, trainable: bool) -> MixedPrecisionPolicy:
    if not trainable or (model.dtype, settings.reduce_dtype) == ("float32", "float32"):
        return MixedPrecisionPolicy()
    return MixedPrecisionPolicy(
        param_dtype=getattr(torch, model.dtype), reduce_dtype=getattr(torch, settings.reduce_dtype)
    )


def _mesh(groups: LayoutGroups, device: str) -> DeviceMesh:
    """Return a mesh of one dimension, or of copies x shards."""
    layout = groups.layout
    if layout.num_shards == layout.dp:
        return DeviceMesh.from_group(groups.shard, device)
    grid = layout.shard_grid
    return DeviceMesh.from_group(
        [groups.copies, groups.shard],
        device,
        mesh=torch.tensor(grid.ranks()).view(-1, layout.num_shards),
        mesh_dim_names=("copies", "shards"),
    )


def _shard(
    decoder: Decoder,
    groups: LayoutGroups,
    precision: MixedPrecisionPolicy,
    settings: FsdpConfig,
    device: torch.device,
) -> None:
    mesh = _mesh(groups, device.type)
    for layer in decoder.model.layers:
        fully_shard(
            layer,
            mesh=mesh,
            reshard_after_forward=settings.reshard_after_forward,
            mp_policy=precision,
        )
    fully_shard(decoder, mesh=mesh, mp_policy=precision)
    modules = sharded_modules(decoder)
    if settings.forward_prefetch:
        for module, following in pairwise(modules):
            module.set_modules_to_forward_prefetch([following])
    for module in modules:
        # Losses come with their global normaliser, so gradients are summed, not averaged.
        module.set_gradient_divide_factor(1.0)
        # NCCL alone knows reductions with a factor in them.
        module.set_force_sum_reduction_for_comms(True)
