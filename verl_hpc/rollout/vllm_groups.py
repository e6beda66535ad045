"""Make vLLM's process groups before the engine is built, so that they may be interleaved.

By default vLLM's tensor-parallel groups are neighbouring ranks of the whole world. It accepts
existing groups if their sizes fit (`ensure_model_parallel_initialized`); this allows
zero-redundancy groups such as [0, 2] [1, 3], and ranks that do not generate. vLLM keeps its groups
in module globals, so a process has one engine at a time.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch.distributed as dist
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.distributed import parallel_state

from verl_hpc.layout.rollout import stage_groups
from verl_hpc.rollout.protocol import replica_of
from verl_hpc.runtime import environment
from verl_hpc.runtime.world import World

_replica: Any = None
"""Group of all ranks of an engine."""


def start_groups(
    world: World,
    replicas: Sequence[tuple[int, ...]],
    custom_all_reduce: bool = True,
    num_stages: int = 1,
) -> None:
    """Create vLLM's groups; all ranks of the world call it together, including ranks in no replica.

    Args:
        world: this rank's place.
        replicas: ranks of every engine, ordered by stage.
        custom_all_reduce: sum over tensor-parallel groups with vLLM's own kernel instead of NCCL,
            where possible.
        num_stages: pipeline stages of an engine.
    """
    global _replica
    # torch numbers the ranks of a group in ascending order, vLLM in the order given.
    assert all(list(group) == sorted(group) for group in replicas), replicas
    backend = "gloo" if world.device == "cpu" else "nccl"
    environment.name_shared_memory(world)
    parallel_state.set_custom_all_reduce(custom_all_reduce)
    stages = stage_groups(replicas, num_stages)
    tensor_parallel = [ranks for stage in stages for ranks in stage]
    pipelines = [ranks for parts in zip(*stages, strict=True) for ranks in zip(*parts, strict=True)]

    _start_world(world, backend)
    with set_current_vllm_config(VllmConfig()):
        # Every rank makes its own, in the same place of the order that torch names groups by.
        alone = _coordinator("alone", [(world.rank,)], world, backend)

        def group(name: str, ranks: Sequence[Sequence[int]], broadcaster: bool = False) -> Any:
            if len(ranks[0]) == 1:
                return alone
            if replica_of(replicas, world.rank) is None:
                _count_along(ranks, backend)
                return alone
            return _coordinator(name, ranks, world, backend, broadcaster)

        parallel_state._TP = parallel_state._ETP = group("tp", tensor_parallel, broadcaster=True)
        parallel_state._DCP = parallel_state._PCP = parallel_state._DP = alone
        parallel_state._PP = group("pp", pipelines)
        # Asked for by layers of experts, which are split as other layers are.
        parallel_state._EP = parallel_state._TP
        _replica = group("replica", replicas) if num_stages > 1 else parallel_state._TP
    _copy_inputs_of_graphs(parallel_state._TP)
    dist.barrier()


def _start_world(world: World, backend: str) -> None:
    """Create vLLM's group of all ranks, once per process.

    vLLM's own function also counts the nodes, with a round of collectives for each.
    """
    if parallel_state._WORLD is None:
        everyone = list(range(world.size))
        parallel_state._WORLD = parallel_state.init_world_group(
            everyone, world.device_index, backend
        )
        parallel_state._NODE_COUNT = world.num_nodes


def _coordinator(
    name: str,
    groups: Sequence[Sequence[int]],
    world: World,
    backend: str,
    broadcaster: bool = False,
) -> Any:
    return parallel_state.init_model_parallel_group(
        [list(ranks) for ranks in groups],
        world.device_index,
        backend,
        use_message_queue_broadcaster=broadcaster,
        group_name=name,
    )


def _count_along(groups: Sequence[Sequence[int]], backend: str) -> None:
    """Call new_group as often as a coordinator would, on a rank outside its groups, which vLLM
    refuses.

    torch names a group by the number of groups that a process has created.
    """
    for ranks in groups:
        for kind in (backend, "gloo"):
            dist.new_group(list(ranks), backend=kind)


def _copy_inputs_of_graphs(tensor_parallel: Any) -> None:
    """Make vLLM's own all-reduce copy a CUDA graph's inputs into a shared buffer.

    By default it shares the memory of all captured graphs with the other ranks, and crashes if that
    is in expandable segments (vLLM's issue 42609). vLLM also copies for graphs in a sleeping pool.
    """
    kernel = getattr(tensor_parallel.device_communicator, "ca_comm", None)
    if kernel is not None:
        kernel._capture_registered = False


@contextmanager
def replica_as_world() -> Iterator[None]:
    """Make this rank's replica vLLM's world while an engine is built.

    vLLM agrees over its world on the memory for the cache and on FlashInfer's kernels
    (`ExecutorWithExternalLauncher.determine_available_memory`, `warmup/kernel_warmup.py`), and
    would wait for ranks that build no engine.
    """
    original = parallel_state.get_world_group
    replica = copy.copy(_replica)
    # It names the files of tuned kernels, which must differ between replicas.
    replica.rank_in_group = original().rank_in_group
    parallel_state.get_world_group = lambda: replica
    try:
        yield
    finally:
        parallel_state.get_world_group = original


def stop_groups() -> None:
    """Destroy the groups of the last engine, if there are any; all ranks of a replica call it
    together."""
    global _replica
    if _replica is not None:
        _replica.barrier()
        if _replica is not parallel_state._TP:
            _replica.destroy()
        _replica = None
        parallel_state.destroy_model_parallel()
