"""The rollout engine that a configuration names."""

from __future__ import annotations

import importlib.util

from verl_hpc.config.rollout import RolloutConfig
from verl_hpc.errors import ConfigError
from verl_hpc.layout.architecture import Architecture
from verl_hpc.rollout.protocol import RolloutEngine
from verl_hpc.runtime.world import World


def build_rollout(
    world: World,
    arch: Architecture,
    model: str,
    tokenizer: str,
    replicas: tuple[tuple[int, ...], ...],
    config: RolloutConfig,
    dtype: str,
) -> RolloutEngine:
    """Build the engine; all ranks together.

    Raises:
        ConfigError: vLLM is asked for and not installed, or the engine cannot honour a setting.
    """
    if config.engine == "hf":
        from verl_hpc.rollout.hf import HfEngine

        return HfEngine(world, arch, model, tokenizer, replicas, config, dtype)
    if importlib.util.find_spec("vllm") is None:
        raise ConfigError(
            "rollout.engine = vllm, and vLLM is not installed; install verl_hpc[gpu] (or [cpu]), "
            "or choose rollout.engine: hf"
        )
    from verl_hpc.rollout.vllm import VllmEngine

    return VllmEngine(world, arch, model, tokenizer, replicas, config, dtype)
