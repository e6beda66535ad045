"""The values and scales that a training rank holds while it sends quantised weights."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import lru_cache

from verl_hpc.layout.architecture import Architecture
from verl_hpc.layout.megatron import TrainLayout, megatron_shard_map
from verl_hpc.layout.pipeline import layers_per_stage, stage_layers
from verl_hpc.layout.quantization import SCALES, VALUES, scale_shape
from verl_hpc.layout.shard_map import ITEM_BYTES, TensorSpec
from verl_hpc.planner.memory.rollout import RolloutShape, quantised_modules
from verl_hpc.planner.shape import RoleShape


@lru_cache(maxsize=4096)
def quantised_copies(shape: RoleShape, stage: int, rollout: RolloutShape) -> int:
    """Bytes that `transfer.fp8.Fp8Weights` makes on one stage of the role that generates.

    Args:
        shape: of the role.
        stage: of its pipeline.
        rollout: of the engines.
    """
    if rollout.quantization is None:
        return 0
    layout = shape.layout
    counts = layers_per_stage(shape.arch.num_layers, layout.pp, layout.vpp)
    layers = [n for c in range(layout.vpp) for n in stage_layers(counts, stage, c)]
    kinds = Counter(quantised_modules(rollout, layer) for layer in layers)
    sizes = layout.tp, layout.ep, layout.etp
    return sum(count * _of_layer(shape.arch, sizes, kind) for kind, count in kinds.items())


@lru_cache(maxsize=1024)
def _of_layer(arch: Architecture, sizes: tuple[int, int, int], quantised: frozenset[str]) -> int:
    # All ranks of a layout hold equal shares of a layer, so the first stands for each.
    tp, ep, etp = sizes
    layout = TrainLayout(tp=tp, ep=ep, etp=etp, dp=ep * etp)
    one = megatron_shard_map(replace(arch, num_layers=1), layout)
    names = {f"model.layers.0.{module}.weight" for module in quantised}
    mine = [region for region in one.held_by(0) if region.tensor in names]
    values = sum(region.box.num_elements for region in mine) * ITEM_BYTES[VALUES]
    whole = {region.tensor: scale_shape(one.tensors[region.tensor].shape) for region in mine}
    return values + sum(TensorSpec(blocks, SCALES).num_bytes for blocks in whole.values())
