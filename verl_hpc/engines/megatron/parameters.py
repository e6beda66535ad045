"""A rank's parameters: local names, shared memory, what can leave the device, and the marks that
Megatron-core's optimizer reads."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch

from verl_hpc.engines.megatron.optimizer import Optimizer
from verl_hpc.engines.shared.offload import Candidates, Memory
from verl_hpc.layout.live import check_parameters
from verl_hpc.layout.megatron import TrainLayout, is_expert
from verl_hpc.layout.shard_map import Region, ShardMap
from verl_hpc.layout.writers import primary_regions


def named_parameters(chunks: Sequence[Any]) -> dict[str, torch.nn.Parameter]:
    """Return the parameters of model chunks by the shard map's local names."""
    return {
        f"chunk{index}.{name.replace('module.', '')}": parameter
        for index, chunk in enumerate(chunks)
        for name, parameter in chunk.named_parameters()
    }


def named_biases(chunks: Sequence[Any]) -> dict[str, torch.Tensor]:
    """Return the biases of routers' choices by the shard map's local names.

    They are buffers in float32, whatever the parameters are.
    """
    biases = {}
    for index, chunk in enumerate(chunks):
        for name, module in chunk.named_modules():
            if getattr(module, "expert_bias", None) is not None:
                # A chunk in bfloat16 has made it one of them.
                module._maintain_float32_expert_bias()
                local = f"chunk{index}.{name.replace('module.', '')}.expert_bias"
                biases[local] = module.expert_bias
    return biases


def share_frozen(
    parameters: Mapping[str, torch.nn.Parameter], base: Mapping[str, torch.nn.Parameter]
) -> frozenset[torch.nn.Parameter]:
    """Make parameters frozen in both engines use the memory of `base`; their own is freed.

    Args:
        parameters: those of an engine that is being built, by local name.
        base: those of an engine with the same layout.

    Returns:
        The parameters that share memory now.
    """
    shared = set()
    for name, parameter in parameters.items():
        other = base.get(name)
        if parameter.requires_grad or other is None or other.requires_grad:
            continue
        assert (parameter.shape, parameter.dtype) == (other.shape, other.dtype), name
        parameter.data = other.data
        shared.add(parameter)
    return frozenset(shared)


def zero(parameters: Iterable[torch.Tensor]) -> None:
    """Set parameters to zero: no transfer fills their padding."""
    with torch.no_grad():
        for parameter in parameters:
            parameter.zero_()


def mark_sharded(
    parameters: Mapping[str, Any], layout: TrainLayout, shard_map: ShardMap, rank: int
) -> None:
    """Mark parameters that are split over tensor-parallel ranks, so that the gradient norm counts
    every part.

    Megatron-core marks them only when it initialises weights itself.

    Args:
        parameters: those of this rank, by local name.
        layout: the engine's layout.
        shard_map: map of all its parameters, adapters included.
        rank: this rank.
    """
    here = layout.grid.coordinates(rank)
    peers = {layout.grid.rank(**(here | {"tp": index})) for index in range(layout.tp)}
    check_parameters(shard_map, rank, parameters, "Megatron-core")
    for region in shard_map.held_by(rank):
        sharded = not peers.issubset(region.holders)
        parameters[region.view.name].tensor_model_parallel = sharded
    apart = (layout.ep, layout.etp) != (1, layout.tp)
    for name, parameter in parameters.items():
        if is_expert(name):
            # Of their replicas every one counts its own; Megatron-core marks them only where
            # ep > 1, and else would add up the gradients of tensor-parallel ranks nowhere.
            parameter.tensor_model_parallel = True
            parameter.allreduce = not apart
            # Tokens of all ranks come to it; Megatron-core takes its bias for one of its own's.
            parameter.sequence_parallel = False


def primary_regions_of(shard_map: ShardMap, layout: TrainLayout, rank: int) -> list[Region]:
    """Return `primary_regions`, for experts over their own replicas, which shard their state."""
    return [
        region
        for of_experts, grid, axis in (
            (False, layout.grid, "dp"),
            (True, layout.expert_grid, "edp"),
        )
        for region in primary_regions(shard_map, grid, rank, axis)
        if is_expert(region.view.name) is of_experts
    ]


def memory_of(
    chunks: Sequence[Any],
    optimizer: Optimizer | None,
    shared: Collection[torch.nn.Parameter] = frozenset(),
) -> Candidates:
    """Return a function that lists the tensors of each part of an engine's memory.

    Args:
        chunks: the model's chunks.
        optimizer: None for a model that is not trained.
        shared: frozen parameters that lie in another engine's memory.
    """

    def parameters(part: Memory) -> Iterator[torch.Tensor]:
        for parameter in (p for chunk in chunks for p in chunk.parameters()):
            is_own = parameter.requires_grad or parameter not in shared
            if part == "parameters" or (is_own and parameter.requires_grad is (part == "trained")):
                yield parameter.detach()
        if part in ("parameters", "frozen"):
            yield from named_biases(chunks).values()

    def candidates(part: Memory) -> Iterator[torch.Tensor]:
        if part in ("parameters", "trained", "frozen"):
            yield from parameters(part)
        elif part == "gradients":
            for chunk in chunks if optimizer is not None else ():
                buffers = (*chunk.buffers, *chunk.expert_parallel_buffers)
                yield from (buffer.grad_data for buffer in buffers)
        elif optimizer is not None:
            places = {p.untyped_storage().data_ptr() for c in chunks for p in c.parameters()}
            # In float32 the master weights are the parameters themselves.
            for tensor in optimizer.state_tensors().values():
                if tensor.untyped_storage().data_ptr() not in places:
                    yield tensor

    return candidates
