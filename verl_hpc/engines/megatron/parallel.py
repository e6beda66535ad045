"""Megatron-core's process groups, built from a training layout."""

from __future__ import annotations

import logging
from collections.abc import Mapping

import torch
import torch.distributed as dist
from megatron.core import parallel_state, tensor_parallel

from verl_hpc.layout.megatron import TrainLayout

_ours: list[dist.ProcessGroup] = []
"""Groups of the current layout."""


def start_model_parallel(layout: TrainLayout, seed: int) -> None:
    """Create the groups of `layout` over all ranks, replacing those of an earlier layout.

    Megatron-core keeps its groups in module globals, so a process has one training layout at a
    time; actor and critic share it.
    """
    assert layout.num_ranks == dist.get_world_size() and layout.first_rank == 0
    stop_model_parallel()
    # The pipeline layout that Megatron-core logs for every stage is in the run's own log.
    logging.getLogger("megatron.core").setLevel(logging.WARNING)
    before = set(_groups())
    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=layout.tp,
        pipeline_model_parallel_size=layout.pp,
        virtual_pipeline_model_parallel_size=layout.vpp if layout.vpp > 1 else None,
    )
    _ours.extend(group for group in _groups() if group not in before)
    tensor_parallel.model_parallel_cuda_manual_seed(seed)


def _groups() -> list[dist.ProcessGroup]:
    """Every group of this process."""
    return list(dist.distributed_c10d._world.pg_map)


def stop_model_parallel() -> None:
    """Free the groups of the current layout, if there is one.

    Megatron-core only forgets most of them; their threads and connections would stay.
    """
    if parallel_state.model_parallel_is_initialized():
        parallel_state.destroy_model_parallel()
    living = set(_groups())
    for group in _ours:
        if group in living:
            dist.destroy_process_group(group)
    _ours.clear()


def generator_states() -> dict[str, torch.Tensor]:
    """States of this rank's random-number generators, as uint8 tensors."""
    states = {"torch": torch.get_rng_state()}
    if torch.cuda.is_available():
        states["cuda"] = torch.cuda.get_rng_state()
    tracked = tensor_parallel.get_cuda_rng_tracker().get_states()
    return states | {f"megatron.{name}": state for name, state in tracked.items()}


def restore_generators(states: Mapping[str, torch.Tensor]) -> None:
    """Put back what `generator_states` gave on this rank."""
    torch.set_rng_state(states["torch"])
    if "cuda" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state(states["cuda"])
    prefix = "megatron."
    tracked = {n.removeprefix(prefix): s for n, s in states.items() if n.startswith(prefix)}
    tensor_parallel.get_cuda_rng_tracker().set_states(tracked)
