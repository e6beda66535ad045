"""The parameters of a rank's model chunks, in Megatron-core's order; sizes from the shard map."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from functools import lru_cache
from math import prod
from typing import NamedTuple

from verl_hpc.layout.adapters import AdapterShape, adapter_shard_map
from verl_hpc.layout.architecture import Architecture
from verl_hpc.layout.megatron import (
    Backend,
    TrainLayout,
    is_expert,
    megatron_shard_map,
    padded_vocab,
)
from verl_hpc.layout.published import LAYER
from verl_hpc.layout.shard_map import TensorSpec
from verl_hpc.planner.shape import RoleShape

_ORDER = (
    "input_layernorm",
    "self_attention.core_attention",
    "self_attention.linear_proj",
    "self_attention.linear_qkv.layer_norm_weight",
    "self_attention.linear_qkv.weight",
    "self_attention.linear_qkv.bias",
    "self_attention.linear_qkv.lora",
    "self_attention.linear_q_proj",
    "self_attention.linear_q_down_proj",
    "self_attention.linear_q_up_proj.layer_norm_weight",
    "self_attention.linear_q_up_proj.weight",
    "self_attention.linear_kv_down_proj",
    "self_attention.linear_kv_up_proj.layer_norm_weight",
    "self_attention.linear_kv_up_proj.weight",
    "self_attention.q_layernorm",
    "self_attention.k_layernorm",
    "self_attention.kv_layernorm",
    "pre_mlp_layernorm",
    "mlp.router",
    "mlp.linear_fc1.layer_norm_weight",
    "mlp.linear_fc1.weight",
    "mlp.linear_fc1.lora",
    "mlp.linear_fc2",
    "mlp.experts",
    "mlp.shared_experts",
)
"""Parameters of a layer, in the order in which Megatron-core 0.16 registers its modules."""
_PREFIX = "chunk0.decoder.layers.0."


class Parameter(NamedTuple):
    """One parameter on one rank."""

    name: str
    """Name relative to the model chunk, or to the layer if it belongs to one."""
    num_elements: int
    own_bucket: bool = False
    """Whether it has a bucket of its own: an embedding that another stage shares."""
    expert: bool = False
    """Whether it is replicated over the experts' data-parallel ranks, where these differ from the
    dense ones."""

    @property
    def is_linear_weight(self) -> bool:
        """Whether it is the matrix of a linear layer; experts that are computed in one call are
        numbered, as linear_fc1.weight3."""
        return re.search(r"linear_\w+\.weight\d*$", self.name) is not None


def largest_layer(tensors: Mapping[str, TensorSpec]) -> dict[str, TensorSpec]:
    """Return the tensors of the decoder layer that has the most elements."""
    layers: dict[str, dict[str, TensorSpec]] = defaultdict(dict)
    for name, spec in tensors.items():
        if numbered := LAYER.match(name):
            layers[numbered[1]][name] = spec
    return max(layers.values(), key=lambda layer: sum(prod(s.shape) for s in layer.values()))


@lru_cache(maxsize=512)
def layer_parameters(
    arch: Architecture,
    tp: int,
    ep: int,
    etp: int,
    backend: Backend,
    adapters: AdapterShape | None = None,
) -> tuple[Parameter, ...]:
    """Parameters of one decoder layer on one rank: all ranks of a layout have equal shares. What is
    no parameter, such as a router's bias, is left out.

    Args:
        arch: with this layer alone.
        tp, ep, etp: of the layout.
        backend: names norms.
        adapters: take theirs, and not those of the layer.
    """
    if not arch.is_mapped:  # it is not divided but by fully_shard
        layer = largest_layer(arch.tensors("uint8"))
        return tuple(Parameter(name, spec.num_bytes) for name, spec in layer.items())
    # As many replicas as the experts' sizes divide; they change nothing on a rank.
    layout = TrainLayout(tp=tp, ep=ep, etp=etp, dp=ep * etp)
    one = megatron_shard_map(arch, layout, backend=backend, dtype="uint8")
    if adapters is not None:
        one = adapter_shard_map(arch, one, adapters)
    sizes: dict[str, int] = defaultdict(int)
    for region in one.held_by(0):
        if region.view.name.startswith(_PREFIX) and region.tensor not in arch.buffers:
            sizes[region.view.name.removeprefix(_PREFIX)] += region.box.num_elements
    apart = (ep, etp) != (1, tp)
    parameters = [
        Parameter(n, size, expert=apart and is_expert(f".{n}")) for n, size in sizes.items()
    ]
    return tuple(sorted(parameters, key=lambda parameter: _place(parameter.name)))


def _place(name: str) -> int:
    return next(i for i, begin in enumerate(_ORDER) if name.startswith(begin))


@lru_cache(maxsize=4096)
def stage_buffers(shape: RoleShape, stage: int) -> int:
    """Elements on a rank, in float32, of what is saved and no parameter: biases of routers."""
    arch = shape.arch
    return sum(
        prod(arch.shape(row))
        for kind in (shape.kinds_of_stage(stage) if arch.is_mapped else ())
        for row in arch.table_of(kind).rows
        if row.is_buffer
    )


def vocabulary_share(arch: Architecture, tp: int) -> int:
    """Rows of the vocabulary that a rank has, with padding."""
    return padded_vocab(arch.vocab_size, tp) // tp


def layer_of(
    shape: RoleShape, layer: int = -1, adapters: AdapterShape | None = None
) -> tuple[Parameter, ...]:
    """`layer_parameters` of a layer of a shape, or those of its adapters."""
    arch, layout = shape.arch, shape.layout
    one = arch.one_layer(layer) if arch.is_mapped else arch
    return layer_parameters(one, layout.tp, layout.ep, layout.etp, shape.backend, adapters)


def _layers_of(
    shape: RoleShape, kinds: Sequence[int], adapters: AdapterShape | None = None
) -> tuple[Parameter, ...]:
    """Parameters of layers of these kinds, one layer after another."""
    return tuple(p for kind in kinds for p in layer_of(shape, kind, adapters))


class Elements(NamedTuple):
    """Elements of a rank's parameters, without the padding of buffers."""

    dense: int
    expert: int
    largest: int
    """Elements of the largest parameter."""

    @property
    def total(self) -> int:
        return self.dense + self.expert


@lru_cache(maxsize=4096)
def stage_elements(shape: RoleShape, stage: int) -> Elements:
    """Sum the elements of all chunks of one stage, as listed by `chunk_parameters`."""
    ends = (*_before_layers(shape, stage), *_behind_layers(shape, stage))
    return _elements(shape, stage, None, ends)


@lru_cache(maxsize=4096)
def trained_elements(shape: RoleShape, stage: int) -> Elements:
    """Sum the elements of all chunks of one stage, as listed by `trained_parameters`."""
    if shape.adapters is None:
        return stage_elements(shape, stage)
    return _elements(shape, stage, shape.adapters, _heads(shape, stage))


def _elements(
    shape: RoleShape, stage: int, adapters: AdapterShape | None, ends: Sequence[Parameter]
) -> Elements:
    total = sum(p.num_elements for p in ends)
    largest = max((p.num_elements for p in ends), default=0)
    expert = 0
    for kind, num_layers in Counter(shape.kinds_of_stage(stage)).items():
        layer = layer_of(shape, kind, adapters)
        expert += num_layers * sum(p.num_elements for p in layer if p.expert)
        total += num_layers * sum(p.num_elements for p in layer)
        largest = max(largest, *(p.num_elements for p in layer))
    return Elements(total - expert, expert, largest)


@lru_cache(maxsize=4096)
def chunk_parameters(shape: RoleShape, stage: int, chunk: int) -> tuple[Parameter, ...]:
    """Parameters of one model chunk of one stage, in the order of `named_parameters`."""
    before = _before_layers(shape, stage) if chunk == 0 else ()
    behind = _behind_layers(shape, stage) if chunk == shape.layout.vpp - 1 else ()
    return (*before, *_layers_of(shape, shape.kinds(stage, chunk)), *behind)


@lru_cache(maxsize=4096)
def trained_parameters(shape: RoleShape, stage: int, chunk: int) -> tuple[Parameter, ...]:
    """Parameters of a chunk that have gradients: all, or adapters and the one-number head."""
    if shape.adapters is None:
        return chunk_parameters(shape, stage, chunk)
    heads = _heads(shape, stage) if chunk == shape.layout.vpp - 1 else ()
    return (*_layers_of(shape, shape.kinds(stage, chunk), shape.adapters), *heads)


def _before_layers(shape: RoleShape, stage: int) -> list[Parameter]:
    if stage:
        return []
    return [Parameter("embedding", _vocabulary(shape), own_bucket=_copies_embedding(shape))]


def _behind_layers(shape: RoleShape, stage: int) -> list[Parameter]:
    if not shape.is_last(stage):
        return []
    hidden, copies = shape.arch.hidden_size, _copies_embedding(shape)
    parameters = [Parameter("decoder.final_layernorm.weight", hidden)]
    if not shape.has_logits:
        parameters.append(Parameter("output_layer.weight", hidden))
    elif not shape.arch.tied_embeddings or copies:
        parameters.append(Parameter("output_layer.weight", _vocabulary(shape), own_bucket=copies))
    return parameters


def _heads(shape: RoleShape, stage: int) -> list[Parameter]:
    """The output layer of a head that gives one number, which is trained beside adapters."""
    one_number = not shape.has_logits
    return [p for p in _behind_layers(shape, stage) if one_number and "output_layer" in p.name]


def _vocabulary(shape: RoleShape) -> int:
    return vocabulary_share(shape.arch, shape.layout.tp) * shape.arch.hidden_size


def _copies_embedding(shape: RoleShape) -> bool:
    """Whether the first and the last stage each hold the embedding."""
    return shape.shares_embedding and shape.layout.pp > 1
