"""Bytes that one model's engine holds from step to step, per rank.

They equal the bytes of the engine's storages: tests/mpi/test_ledger.py counts them.
"""

from __future__ import annotations

from functools import lru_cache

from verl_hpc.planner.memory.buffers import Buffer, Unpadded, bucket_elements
from verl_hpc.planner.memory.parameters import (
    chunk_parameters,
    stage_buffers,
    stage_elements,
    trained_elements,
    trained_parameters,
)
from verl_hpc.planner.memory.sharded import Shards, frozen_shards, trained_shards
from verl_hpc.planner.shape import RoleShape

MASTER_BYTES = 4
"""Bytes of a gradient or a master weight: float32."""
_FP8_COPIES = 2
"""Copies of a linear layer's weight, by rows and by columns, at one byte an element."""
_MXFP8_SCALES = 2 / 32


@lru_cache(maxsize=4096)
def buffers(shape: RoleShape, stage: int) -> tuple[Buffer | Shards | Unpadded, ...]:
    """Buffers of all chunks of a stage; empty where nothing is trained."""
    if shape.is_sharded:
        return (trained_shards(shape),) if shape.trainable else ()
    if not shape.padded:
        return _unpadded(shape, stage) if shape.trainable else ()
    return tuple(
        buffer
        for chunk in range(shape.layout.vpp)
        for buffer in _of_chunk(shape, stage, chunk)
        if shape.trainable
    )


def _of_chunk(shape: RoleShape, stage: int, chunk: int) -> list[Buffer]:
    layout, parameters = shape.layout, trained_parameters(shape, stage, chunk)
    # Only the first chunk of the first stage is cut, and only where gradients are sent early.
    cut = shape.on_gpu and stage == chunk == 0
    size = bucket_elements(layout.dp) if cut else None
    dense = [p for p in parameters if not p.expert]
    experts = [p for p in parameters if p.expert]
    made = [Buffer(dense, layout.dp, size)] if dense else []
    if experts:
        replicas = layout.tp * layout.dp // (layout.ep * layout.etp)
        made.append(Buffer(experts, replicas, size))
    return made


def _unpadded(shape: RoleShape, stage: int) -> tuple[Unpadded, ...]:
    layout = shape.layout
    elements = trained_elements(shape, stage)
    experts = layout.tp * layout.dp // (layout.ep * layout.etp)
    return (Unpadded(elements.dense, layout.dp), Unpadded(elements.expert, experts))


def apart_elements(shape: RoleShape, stage: int) -> int:
    """Elements of the parameters that move into buffers once these are made."""
    if shape.is_sharded:
        return 0
    return trained_elements(shape, stage).total if shape.trainable else 0


def frozen(shape: RoleShape, stage: int) -> int:
    """Bytes of parameters without gradients."""
    if shape.is_sharded:
        trains_all = shape.trainable and shape.adapters is None
        return 0 if trains_all else frozen_shards(shape).num_elements * shape.item_bytes
    if not shape.trainable:
        return stage_elements(shape, stage).total * shape.item_bytes
    if shape.adapters is None:
        return 0
    heads = not shape.has_logits and shape.is_last(stage)
    outside = heads * shape.arch.hidden_size
    return (stage_elements(shape, stage).total - outside) * shape.item_bytes


@lru_cache(maxsize=4096)
def buffer_elements(shape: RoleShape, stage: int) -> int:
    """Elements of the buffers of a stage, padding included."""
    return sum(buffer.num_elements for buffer in buffers(shape, stage))


@lru_cache(maxsize=4096)
def weights(shape: RoleShape, stage: int) -> int:
    """Bytes of parameters; trained ones lie in the optimizer's buffers, padding included. Biases of
    routers, in float32, are no parameters."""
    biases = 4 * stage_buffers(shape, stage)
    return frozen(shape, stage) + buffer_elements(shape, stage) * shape.kept_bytes + biases


@lru_cache(maxsize=16384)
def owned_elements(shape: RoleShape, stage: int, replica: int = 0) -> int:
    """Elements of the ranges that a replica's optimizer owns."""
    return sum(owned_ranges(shape, stage, replica))


def owned_ranges(shape: RoleShape, stage: int, replica: int = 0) -> list[int]:
    """Elements of each range that a replica's optimizer owns."""
    ranges = []
    for buffer in buffers(shape, stage):
        ranges += buffer.owned(replica % buffer.num_replicas)
    return ranges


@lru_cache(maxsize=4096)
def fp8_copies(shape: RoleShape, stage: int) -> int:
    """Bytes of FP8 copies of a stage's linear weights: Transformer Engine renews them in the first
    micro-batch of a pass, and keeps them from the first pass on."""
    if shape.fp8 is None:
        return 0
    linear = sum(
        parameter.num_elements
        for chunk in range(shape.layout.vpp)
        for parameter in chunk_parameters(shape, stage, chunk)
        if parameter.is_linear_weight
    )
    scales = _MXFP8_SCALES if shape.fp8.recipe == "mxfp8" else 0
    return int(linear * (_FP8_COPIES + scales))


def resident(shape: RoleShape, stage: int, replica: int = 0) -> dict[str, int]:
    """Bytes that the engine holds from step to step, by term."""
    owned = owned_elements(shape, stage, replica)
    return {
        "weights": weights(shape, stage),
        # Gradients of shards exist only in an update.
        "gradients": 0 if shape.is_sharded else buffer_elements(shape, stage) * MASTER_BYTES,
        # Parameters in float32 are their own master weights.
        "masters": owned * MASTER_BYTES if shape.has_masters else 0,
        "moments": owned * shape.moments_bytes,
    }


def widened(shape: RoleShape, stage: int, replica: int = 0) -> int:
    """Bytes that Transformer Engine's Adam takes in a step where moments are kept in another type
    than float32 (`FusedAdam.step`, 2.11): all in float32 at once, and one that is rounded again."""
    if shape.moments_bytes == 2 * MASTER_BYTES:
        return 0
    ranges = owned_ranges(shape, stage, replica)
    return 2 * MASTER_BYTES * sum(ranges) + shape.moments_bytes // 2 * max(ranges, default=0)
