"""Convert a run's settings to vLLM's arguments."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import pydantic
import vllm
from vllm import EngineArgs
from vllm.v1.core.kv_cache_utils import get_max_concurrency_for_kv_cache_config

from verl_hpc.config.explain import near_or_all
from verl_hpc.config.rollout import RolloutConfig
from verl_hpc.errors import ConfigError

_GIB = 2**30


def memory(config: RolloutConfig, device: str) -> dict[str, Any]:
    """Return the memory limits of weights and cache."""
    if device == "cpu":
        return {"kv_cache_memory_bytes": int((config.kv_cache_gib or 1) * _GIB)}
    # Also with a cache of known size: vLLM insists that this share is free when it starts.
    sizes: dict[str, Any] = {"gpu_memory_utilization": config.gpu_memory_utilization}
    if config.kv_cache_gib is not None:
        sizes["kv_cache_memory_bytes"] = int(config.kv_cache_gib * _GIB)
    return sizes


def experts(config: RolloutConfig, device: str) -> dict[str, Any]:
    """Return how experts are distributed over ranks, and their kernel on GPUs.

    Weights are written in place, so the kernel must use the model's own layout. For unquantized
    experts Triton's does (`fused_moe/oracle/unquantized.py`); on GPUs newer than Hopper and on
    AMD's vLLM prefers others, which change the layout when weights are loaded.
    """
    kernel = {} if device == "cpu" else {"moe_backend": "triton"}
    return {"enable_expert_parallel": config.expert_parallel, **kernel}


LEAST_SEQUENCES, MOST_SEQUENCES = 256, 1024
"""Bounds of the sequences decoded at a time if rollout.max_num_seqs is null. Both are defaults of
vLLM, the second for GPUs with 70 GiB and more."""


def slots(config: RolloutConfig) -> int:
    """Return the number of sequences that vLLM has buffers for; its sampler needs a row of logits
    for each."""
    most = config.engine_options.get("max_num_batched_tokens") or MOST_SEQUENCES
    # vLLM wants a token of every sequence to fit into a step, and says itself what is no number.
    fits = min(most, MOST_SEQUENCES) if isinstance(most, int) else MOST_SEQUENCES
    return config.max_num_seqs or max(fits, 1)


def use_the_cache(core: Any, vllm_config: Any, config: RolloutConfig) -> int:
    """Set how many sequences an engine decodes at a time, by rollout.max_num_seqs or the cache's
    size.

    If the cache holds fewer than LEAST_SEQUENCES vLLM decides how many run: it starts one when the
    cache has room for its prompt, and preempts the last when others grow. Fewer slots would leave
    room unused, since responses are short at first, and often to the end.

    Returns:
        The number of sequences decoded at a time.
    """
    scheduler = core.scheduler
    # As engine_options say, or as many as there are slots.
    most = int(scheduler.max_num_active_reqs)
    if config.max_num_seqs is not None:
        return most
    num_longest = get_max_concurrency_for_kv_cache_config(vllm_config, scheduler.kv_cache_config)
    prompt, response = config.max_prompt_tokens, config.max_response_tokens
    held = int(num_longest * (prompt + response) / (prompt + response / 2))
    scheduler.max_num_active_reqs = count = min(max(held, LEAST_SEQUENCES), most)
    return count


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
    if device == "cpu" and options.get("speculative_config"):
        raise ConfigError(
            "rollout.engine_options.speculative_config: on CPU ranks vLLM then gives log-probs "
            "that are not the model's, some of them NaN; leave it out"
        )
    return options


def custom_all_reduce(options: Mapping[str, Any]) -> bool:
    return not options.get("disable_custom_all_reduce", False)


def in_one_line(error: Exception) -> str:
    """Return the error's message without pydantic's links and its repetition of all settings."""
    if isinstance(error, pydantic.ValidationError):
        return "; ".join(
            f"{'.'.join(map(str, detail['loc']))}: {detail['msg']}".removeprefix(": ")
            for detail in error.errors()
        )
    return str(error).split("\n")[0]
