"""Memory of a generating rank for adapters: what it receives, and the base that it keeps to merge
them with (`trainer.arrival.MergedOnArrival`)."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

from verl_hpc.layout.adapters import AdapterShape, adapter_tensors, factor_map, has_adapter
from verl_hpc.layout.architecture import Architecture
from verl_hpc.layout.generation import layers_per_rollout_stage
from verl_hpc.layout.rollout import whole_shard_map
from verl_hpc.layout.shard_map import ITEM_BYTES, ShardMap
from verl_hpc.layout.vllm import vllm_shard_map
from verl_hpc.planner.memory.rollout import RolloutShape, rollout_weights

MERGED_ELEMENTS = 1 << 24
"""Most elements that are merged at a time, in float32."""
_QUANTISING_BYTES = 11
"""Bytes of an element while it is quantised, besides it in float32: itself in two bytes, in four
each the inverse of its block's scale and their product, and the result."""


class AdaptedLayer(NamedTuple):
    """One decoder layer on a generating rank."""

    factors: int
    """Elements of the A and B that it receives."""
    adapted: int
    """Elements of parameters with adapters."""
    largest: int
    """Elements of the largest region that has an adapter."""


@lru_cache(maxsize=1024)
def adapted_layer(shape: RolloutShape, adapters: AdapterShape) -> AdaptedLayer:
    """Count a decoder layer of an engine whose model has such adapters."""
    arch: Architecture = replace(shape.arch, num_layers=1)
    ranks = [tuple(range(shape.tp))]
    if shape.engine == "hf":
        one = whole_shard_map(arch, ranks, shape.dtype)
    else:
        one = vllm_shard_map(arch, ranks, shape.dtype, shape.expert_parallel)
    specs = ShardMap(adapter_tensors(arch, adapters), ())
    received = factor_map(one, specs).held_by(0)
    sizes: Counter[str] = Counter()
    for region in one.held_by(0):
        sizes[region.view.name] += region.box.num_elements
    with_adapters = [r for r in one.held_by(0) if has_adapter(r.tensor, specs)]
    return AdaptedLayer(
        sum(region.box.num_elements for region in received),
        sum(sizes[name] for name in {region.view.name for region in with_adapters}),
        max(region.box.num_elements for region in with_adapters),
    )


def factor_bytes(shape: RolloutShape, adapters: AdapterShape, trained: str) -> int:
    """Bytes of A and B that a rank receives in each step, in the trainer's type."""
    per_stage = layers_per_rollout_stage(shape.arch.num_layers, shape.pp)
    return per_stage * adapted_layer(shape, adapters).factors * ITEM_BYTES[trained]


def base_bytes(
    shape: RolloutShape, stage: int, adapters: AdapterShape, trained: str, loses: bool
) -> int:
    """Bytes of the base that a rank keeps in host memory.

    Args:
        shape: of the engine.
        stage: of the rank, in its engine's pipeline.
        adapters: of the role that generates.
        trained: element type of its weights, which is that of the base.
        loses: whether the engine loses its weights while it sleeps; all are kept then.
    """
    per_stage = layers_per_rollout_stage(shape.arch.num_layers, shape.pp)
    adapted = per_stage * adapted_layer(shape, adapters).adapted
    if not loses:
        return adapted * ITEM_BYTES[trained]
    # As if no layer with adapters were among rollout.ignored_layers.
    in_engine = 1 if shape.quantization is not None else shape.item_bytes
    return rollout_weights(shape, stage) + adapted * (ITEM_BYTES[trained] - in_engine)


def merging_bytes(shape: RolloutShape, adapters: AdapterShape, trained: str) -> int:
    """Bytes that merging takes at its most, besides A, B and the engine's weights."""
    layer = adapted_layer(shape, adapters)
    quantised = shape.quantization is not None
    part = 4 * (trained != "float32") + _QUANTISING_BYTES * quantised
    # A base of another type than the engine's is on the device beside it, the first time by layers.
    apart = layer.adapted * ITEM_BYTES[trained] * (quantised or trained != shape.dtype)
    return min(layer.largest, MERGED_ELEMENTS) * part + apart
