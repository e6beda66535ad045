"""Where a rollout engine keeps every tensor: known on all ranks, before any engine is built."""

from __future__ import annotations

from collections.abc import Sequence

from verl_hpc.config.rollout import RolloutConfig
from verl_hpc.errors import ConfigError
from verl_hpc.layout.architecture import Architecture
from verl_hpc.layout.shard_map import ShardMap, whole
from verl_hpc.layout.vllm import vllm_shard_map


def rollout_shard_map(
    config: RolloutConfig, arch: Architecture, replicas: Sequence[tuple[int, ...]], dtype: str
) -> ShardMap:
    """The `shard_map` of the engines that `build_rollout` builds with the same arguments.

    Args:
        config: names the engine.
        arch: the model.
        replicas: ranks of every engine, in tensor-parallel order.
        dtype: element type of the weights.

    Raises:
        ConfigError: tensor parallelism, which transformers' engine has not.
        LayoutError: the model does not divide by the tensor-parallel size.
    """
    build = hf_shard_map if config.engine == "hf" else vllm_shard_map
    return build(arch, replicas, dtype)


def hf_shard_map(arch: Architecture, replicas: Sequence[tuple[int, ...]], dtype: str) -> ShardMap:
    """Every tensor whole on every rank, under its own name.

    Raises:
        ConfigError: a replica has more than one rank.
    """
    if len(replicas[0]) != 1:
        raise ConfigError(
            f"rollout.tensor_parallel = {len(replicas[0])} with rollout.engine = hf; it has "
            "the whole model on every rank, so choose 1, or engine: vllm"
        )
    tensors = arch.tensors(dtype)
    holders = tuple(rank for (rank,) in replicas)
    return ShardMap(tensors, [whole(n, n, s.shape, holders) for n, s in tensors.items()])
