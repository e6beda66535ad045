"""Build the rollout engine that a configuration names."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from verl_hpc.config.rollout import RolloutConfig, StructuredConfig
from verl_hpc.errors import ConfigError, ModelError
from verl_hpc.layout.architecture import Architecture
from verl_hpc.layout.json_file import read_json_object
from verl_hpc.layout.rollout import rollout_shard_map
from verl_hpc.layout.vllm import check_cpu_attention
from verl_hpc.rollout.protocol import RolloutEngine, replica_of
from verl_hpc.runtime.versions import check_version
from verl_hpc.runtime.world import World

if TYPE_CHECKING:
    import torch


def check_model(model: Path) -> None:
    """Check that config.json and generation_config.json can be read by engines and users of an
    export.

    Raises:
        ModelError: transformers refuses config.json, or generation_config.json is damaged.
    """
    from verl_hpc.hf.model import settings_of

    config = read_json_object(model / "config.json")
    try:
        settings_of(config)
    except Exception as error:  # every class of configuration checks itself in its own way
        raise ModelError(
            f"model: {model / 'config.json'} is refused by transformers: "
            f"{type(error).__name__}: {error}"
        ) from error
    file = model / "generation_config.json"
    if not file.exists():
        return
    # transformers and vLLM ignore a file that is not JSON, and responses would end differently.
    ends = read_json_object(file).get("eos_token_id")
    for end in ends if isinstance(ends, list) else [ends]:
        if end is not None and type(end) is not int:
            raise ModelError(f"model: {file}: eos_token_id = {ends!r}; expected token ids")


def _check_vllm() -> None:
    """Import vLLM alone, and compare its version."""
    import vllm

    check_version("vLLM", vllm.__version__, "0.32.0")


def import_engine(name: str, device: str) -> None:
    """Import the libraries of engine `name` ahead of time; nothing if they are not installed.

    Raises:
        ClusterError: vLLM is there in another version than was checked.
    """
    if name == "hf":
        import verl_hpc.rollout.hf  # noqa: F401
    elif importlib.util.find_spec("vllm") is not None:
        _check_vllm()
        from verl_hpc.rollout.vllm import import_worker

        import_worker(device)


def invariant_attention() -> Callable[..., torch.Tensor]:
    """Return vLLM's kernel of attention on CPUs for training (`engines.shared.invariant.Attend`).

    Raises:
        ClusterError: vLLM is there in another version than was checked.
    """
    _check_vllm()
    from verl_hpc.rollout.vllm_invariant import attend

    return attend


def build_rollout(
    world: World,
    arch: Architecture,
    model: str,
    tokenizer: str,
    replicas: tuple[tuple[int, ...], ...],
    config: RolloutConfig,
    dtype: str,
    keeps_experts: bool = False,
    constraints: Mapping[str, StructuredConfig] = MappingProxyType({}),
) -> RolloutEngine | None:
    """Build the engine; all ranks of the world call it together.

    Args:
        world: this rank's place.
        arch: the model's sizes.
        model: directory with config.json; its weights are not read.
        tokenizer: directory of the tokenizer.
        replicas: ranks of every engine; not all ranks of the world need be in one.
        config: names the engine, with its sizes and limits.
        dtype: element type of the weights.
        keeps_experts: record the experts of every token (`Response.experts`).
        constraints: constraints on responses that will be asked for, by setting.

    Returns:
        The engine; None on a rank outside all replicas.

    Raises:
        ClusterError: vLLM is there in another version than was checked.
        ConfigError: vLLM is asked for and not installed, or the engine cannot honour a setting.
        LayoutError: the model does not divide by the sizes.
    """
    rollout_shard_map(config, arch, replicas, dtype)  # what it raises, all ranks raise
    generates = replica_of(replicas, world.rank) is not None
    assert not keeps_experts or config.engine == "vllm", "the configuration refuses that"
    if config.engine == "hf":
        if not generates:
            return None
        from verl_hpc.rollout.hf import HfEngine

        return HfEngine(world, arch, model, tokenizer, replicas, config, dtype)
    assert config.engine == "vllm", config.engine
    if importlib.util.find_spec("vllm") is None:
        raise ConfigError(
            "rollout.engine = vllm, and vLLM is not installed; install verl_hpc[gpu] (or [cpu]), "
            "or choose rollout.engine: hf"
        )
    _check_vllm()
    from verl_hpc.rollout.vllm import VllmEngine, join_groups

    if world.device == "cpu" and arch.is_mapped:
        check_cpu_attention(arch)
    if not generates:
        join_groups(world, replicas, config)
        return None
    engine = VllmEngine(
        world, arch, model, tokenizer, replicas, config, dtype, keeps_experts=keeps_experts
    )
    for setting, constraint in constraints.items():
        engine.check(setting, constraint)
    return engine
