"""Build a sharded transformers model from an architecture."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutput

from verl_hpc.config.fsdp import FsdpConfig
from verl_hpc.config.model import ParallelConfig
from verl_hpc.engines.fsdp.attention import NAME
from verl_hpc.engines.fsdp.kernels import Kernels, apply_liger
from verl_hpc.engines.shared.groups import LayoutGroups
from verl_hpc.errors import ModelError
from verl_hpc.hf.model import (
    build_language_model,
    parameters_without_memory,
    tower_parameters,
    without_dropout,
)
from verl_hpc.hf.stored import places_of, stored_views
from verl_hpc.layout.architecture import Architecture
from verl_hpc.layout.fsdp import Place
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
        tie_word_embeddings=arch.tied_embeddings,
        sliding_window=None,  # windows that would cut anything off are refused with the model
        pad_token_id=None,  # whose embedding transformers would not train
    )
    return without_dropout(config)


class Headed(torch.nn.Module):
    """A decoder with a projection to one number; parameters have the names of the checkpoint.

    Args:
        model: a language model, whose decoder is taken.
        head: the output layer.
        dtype: element type of the output layer.
    """

    def __init__(self, model: PreTrainedModel, head: Head, dtype: torch.dtype) -> None:
        super().__init__()
        self._prefix, self._head = (
            model.base_model_prefix,
            HEAD_TENSORS[head].removesuffix(".weight"),
        )
        self.add_module(self._prefix, model.base_model)
        size = model.config.get_text_config().hidden_size
        self.add_module(self._head, torch.nn.Linear(size, 1, bias=False, dtype=dtype))

    def forward(self, input_ids: torch.Tensor, **how: Any) -> CausalLMOutput:
        """Map (B, T) int64 tokens to one number each, as logits (B, T, 1)."""
        hidden = self.get_submodule(self._prefix)(input_ids=input_ids, **how).last_hidden_state
        return CausalLMOutput(logits=self.get_submodule(self._head)(hidden))


@dataclass(frozen=True)
class Blank:
    """A model whose parameters have no memory."""

    module: torch.nn.Module
    """A `PreTrainedModel` or `Headed`; its forward returns logits."""
    layers: Sequence[torch.nn.Module]
    """Modules whose parameters are gathered as one."""
    places: Mapping[str, Place] | None
    """Where the tensors of its files lie in it; None if each is a parameter of its own name."""


def blank(
    arch: Architecture, head: Head, dtype: torch.dtype, head_dtype: torch.dtype | None = None
) -> Blank:
    """Build a model whose parameters have shapes and no memory; what no checkpoint has, such as
    rotary tables, is computed.

    Args:
        arch: the model.
        head: the output layer.
        dtype: element type of the parameters.
        head_dtype: that of a one-number head; `dtype` if None.

    Raises:
        ModelError: transformers cannot build what config.json says.
    """
    places = None
    with parameters_without_memory():
        if arch.published is None:
            model: PreTrainedModel = AutoModelForCausalLM.from_config(
                transformers_config(arch), dtype=dtype, attn_implementation=NAME
            )
            layers = list(model.base_model.layers)
        else:
            model = build_language_model(arch, dtype)
            layers = _whole_modules(model)
            places = places_of(model, stored_views(model, arch.published.shapes))
        module = Headed(model, head, head_dtype or dtype) if head in HEAD_TENSORS else model
    if places is not None and head in HEAD_TENSORS:
        kept = module.state_dict().keys()
        places = {name: place for name, place in places.items() if place.view.name in kept}
        name = HEAD_TENSORS[head]
        places[name] = Place.of_parameter(name, (1, arch.hidden_size))
    return Blank(module, layers, places)


def _whole_modules(model: PreTrainedModel) -> list[torch.nn.Module]:
    """Modules that transformers says are not to be divided: the layers."""
    names = set(model._no_split_modules or ())
    named = {n: m for n, m in model.named_modules() if type(m).__name__ in names}
    layers = [  # one may have others in it, which are gathered with it
        module
        for name, module in named.items()
        if not any(name.startswith(f"{other}.") for other in named)
    ]
    if not layers:
        raise ModelError(
            f"{type(model).__name__}: transformers does not say which of its modules are layers "
            "(_no_split_modules), so that it cannot be divided between ranks"
        )
    return layers


def build_decoder(
    model: Blank,
    groups: LayoutGroups,
    dtype: str,
    parallel: ParallelConfig,
    *,
    trainable: bool,
    kernels: Kernels,
    frozen_tower: bool = False,
    trained: Collection[str] | None = None,
) -> torch.nn.Module:
    """Give a model memory, with its parameters sharded over the ranks of a layout, all zero.

    No rank ever holds the whole model: memory is allocated after sharding.

    Args:
        model: a new one, which is changed.
        groups: the layout's process groups.
        dtype: element type that layers compute in.
        parallel: settings of fully_shard and recomputation.
        trainable: whether it has an optimizer.
        kernels: what computes it.
        frozen_tower: leave what reads images as it is (model.vision_tower).
        trained: names of the parameters that are trained; all if None.

    Raises:
        ModelError: layers are to be recomputed, and transformers' model cannot.
    """
    module, settings = model.module, parallel.fsdp or FsdpConfig()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    module.requires_grad_(trainable)
    whole = transformers_model(module)
    if frozen_tower:
        tower = tower_parameters(whole)
        for name, parameter in whole.named_parameters():
            parameter.requires_grad_(trainable and name not in tower)
    for name, parameter in module.named_parameters():
        parameter.requires_grad_(parameter.requires_grad and (trained is None or name in trained))
    if kernels.liger:
        apply_liger(whole.base_model)
    if parallel.recompute == "full":
        if not whole.supports_gradient_checkpointing:
            raise ModelError(
                f"parallel.recompute = full: transformers' {type(whole).__name__} does not compute "
                "its layers again; set it to none"
            )
        whole.gradient_checkpointing_enable({"use_reentrant": False})
    if kernels.compiled:
        for layer in model.layers:
            layer.compile(dynamic=True)
    _shard(model, groups, _precision(dtype, settings, trainable), settings, device)
    module._apply(
        lambda t: torch.zeros_like(t, device=device) if t.device.type == "meta" else t.to(device)
    )
    whole.tie_weights()
    return module


def transformers_model(module: torch.nn.Module) -> PreTrainedModel:
    """Return the outermost model of transformers in a module."""
    return next(m for m in module.modules() if isinstance(m, PreTrainedModel))


def local_part(parameter: torch.Tensor) -> torch.Tensor:
    """Return this rank's rows of a sharded parameter or gradient, sharing its memory."""
    assert isinstance(parameter, DTensor)
    local: torch.Tensor = parameter.detach().to_local()
    return local


def sharded_modules(decoder: torch.nn.Module) -> list[FSDPModule]:
    """Return the modules that gather their parameters as one, in the order of a forward pass: the
    root, which has all parameters outside layers, and then each layer."""
    return [module for module in decoder.modules() if isinstance(module, FSDPModule)]


def _precision(dtype: str, settings: FsdpConfig, trainable: bool) -> MixedPrecisionPolicy:
    if not trainable or (dtype, settings.reduce_dtype) == ("float32", "float32"):
        return MixedPrecisionPolicy()
    return MixedPrecisionPolicy(
        param_dtype=getattr(torch, dtype), reduce_dtype=getattr(torch, settings.reduce_dtype)
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
    model: Blank,
    groups: LayoutGroups,
    precision: MixedPrecisionPolicy,
    settings: FsdpConfig,
    device: torch.device,
) -> None:
    mesh = _mesh(groups, device.type)
    for layer in model.layers:
        fully_shard(
            layer,
            mesh=mesh,
            reshard_after_forward=settings.reshard_after_forward,
            mp_policy=precision,
        )
    fully_shard(model.module, mesh=mesh, mp_policy=precision)
    modules = sharded_modules(model.module)
    if settings.forward_prefetch:
        for module, following in pairwise(modules):
            module.set_modules_to_forward_prefetch([following])
    for module in modules:
        # Losses come with their global normaliser, so gradients are summed, not averaged.
        module.set_gradient_divide_factor(1.0)
        # NCCL alone knows reductions with a factor in them.
        module.set_force_sum_reduction_for_comms(True)
