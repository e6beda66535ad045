"""The parameters of a rank's model chunks, in Megatron-core's order; sizes from the shard map."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

from verl_hpc.layout.architecture import Architecture
from verl_hpc.layout.megatron import Backend, TrainLayout, megatron_shard_map, padded_vocab
from verl_hpc.planner.memory.shape import RoleShape

_ORDER = (
    "input_layernorm",
    "self_attention.linear_proj",
    "self_attention.linear_qkv.layer_norm_weight",
    "self_attention.linear_qkv.weight",
    "self_attention.linear_qkv.bias",
    "self_attention.q_layernorm",
    "self_attention.k_layernorm",
    "pre_mlp_layernorm",
    "mlp.router",
    "mlp.linear_fc1.layer_norm_weight",
    "mlp.linear_fc1.weight",
    "mlp.linear_fc2",
    "mlp.experts",
)
"""Of a layer's parameters, as Megatron-core 0.16 registers its modules."""
_PREFIX = "chunk0.decoder.layers.0."


class Parameter(NamedTuple):
    """Of one rank."""

    name: str
    """Below its chunk; of a layer, below that."""
    num_elements: int
    own_bucket: bool = False
    """An embedding that another stage shares has a bucket of its own."""
    expert: bool = False
    """Replicated over the experts' data-parallel ranks alone."""


@lru_cache(maxsize=512)
def layer_parameters(
    arch: Architecture, tp: int, ep: int, etp: int, backend: Backend
) -> tuple[Parameter, ...]:
    """Of one decoder layer on one rank: all ranks of a layout have equal shares.

    Args:
        arch: of a `RoleShape`.
        tp, ep, etp: of the layout.
        backend: names norms.
    """
    # As many replicas as the experts' sizes divide; they change nothing on a rank.
    layout = TrainLayout(tp=tp, ep=ep, etp=etp, dp=ep * etp)
    one = megatron_shard_map(replace(arch, num_layers=1), layout, backend=backend, dtype="uint8")
    sizes: dict[str, int] = defaultdict(int)
    for region in one.held_by(0):
        if region.view.name.startswith(_PREFIX):
            sizes[region.view.name.removeprefix(_PREFIX)] += region.box.num_elements
    found = [Parameter(n, size, expert=ep > 1 and "experts" in n) for n, size in sizes.items()]
    return tuple(sorted(found, key=lambda parameter: _place(parameter.name)))


def _place(name: str) -> int:
    return next(i for i, begin in enumerate(_ORDER) if name.startswith(begin))


def vocabulary_share(arch: Architecture, tp: int) -> int:
    """Rows of the vocabulary that a rank has, with padding."""
    return padded_vocab(arch.vocab_size, tp) // tp


def layer_of(shape: RoleShape) -> tuple[Parameter, ...]:
    """`layer_parameters` of a shape."""
    layout = shape.layout
    return layer_parameters(shape.arch, layout.tp, layout.ep, layout.etp, shape.backend)


@lru_cache(maxsize=4096)
def chunk_parameters(shape: RoleShape, stage: int, chunk: int) -> tuple[Parameter, ...]:
    """Of one model chunk of one stage, in the order of `named_parameters`."""
    arch, layout = shape.arch, shape.layout
    rows = vocabulary_share(arch, layout.tp) * arch.hidden_size
    is_first = stage == chunk == 0
    is_last = shape.is_last(stage) and chunk == layout.vpp - 1
    shared = shape.shares_embedding and layout.pp > 1
    found = [Parameter("embedding", rows, own_bucket=shared)] if is_first else []
    found += layer_of(shape) * shape.layers[chunk][stage]
    if is_last:
        found.append(Parameter("decoder.final_layernorm.weight", arch.hidden_size))
        if shape.head != "language_model":
            found.append(Parameter("output_layer.weight", arch.hidden_size))
        elif not arch.tied_embeddings or shared:
            found.append(Parameter("output_layer.weight", rows, own_bucket=shared))
    return tuple(found)
