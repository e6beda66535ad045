"""From a run's settings to vLLM's arguments."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import pydantic
import vllm
from vllm import EngineArgs

from verl_hpc.config.explain import near_or_all
from verl_hpc.config.rollout import RolloutConfig
from verl_hpc.errors import ConfigError

_GIB = 2**30


def memory(config: RolloutConfig, device: str) -> dict[str, Any]:
    """Memory for weights and cache."""
    if device == "cpu":
        return {"kv_cache_memory_bytes": int((config.kv_cache_gib or 1) * _GIB)}
    # Also with a cache of known size: vLLM insists that this share is free when it starts.
    sizes: dict[str, Any] = {"gpu_memory_utilization": config.gpu_memory_utilization}
    if config.kv_cache_gib is not None:
        sizes["kv_cache_memory_bytes"] = int(config.kv_cache_gib * _GIB)
    return sizes


_CUTS_PROMPTS = (
    "enable_chunked_prefill",
    "long_prefill_token_threshold",
    "max_num_scheduled_tokens",
)


def checked(options: Mapping[str, Any], device: str) -> Mapping[str, Any]:
    known = {field.name for field in dataclasses.fields(EngineArgs)}
    for name in options:
        if name not in known:
            raise ConfigError(
                f"rollout.engine_options.{name}: vLLM {vllm.__version__} has no such option; "
                f"{near_or_all(name, sorted(known))}"
            )
    for name in _CUTS_PROMPTS if device == "cpu" else ():
        if options.get(name):
            raise ConfigError(
                f"rollout.engine_options.{name}: it would cut prompts in pieces, which vLLM cannot "
                "on CPU ranks, since every request has a seed; leave it out"
            )
    return options


def custom_all_reduce(options: Mapping[str, Any]) -> bool:
    return not options.get("disable_custom_all_reduce", False)


def in_one_line(error: ValueError) -> str:
    """The message without pydantic's links and its repetition of all settings."""
    if isinstance(error, pydantic.ValidationError):
        return "; ".join(
            f"{'.'.join(map(str, detail['loc']))}: {detail['msg']}".removeprefix(": ")
            for detail in error.errors()
        )
    return str(error).split("\n")[0]
