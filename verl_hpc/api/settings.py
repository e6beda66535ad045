"""The flat settings of `PPOTrainer`, and the run's configuration that they stand for."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import torch
from pydantic import ValidationError

from verl_hpc.algorithms import advantages
from verl_hpc.algorithms.advantage import Advantage
from verl_hpc.algorithms.choices import members
from verl_hpc.config.arguments import plain_number
from verl_hpc.config.explain import explain, near_or_all, shown
from verl_hpc.config.load import parse_config
from verl_hpc.config.reward import SmoothingConfig
from verl_hpc.config.run import RunConfig
from verl_hpc.errors import ConfigError
from verl_hpc.migration.legacy import older
from verl_hpc.migration.table import find
from verl_hpc.section import (
    Fraction,
    NonNegativeFinite,
    PathText,
    Positive,
    PositiveFinite,
    PositiveRate,
    Section,
    Seed,
)
from verl_hpc.tutorial_names import ELSEWHERE

_EMA = "the average of earlier rewards is reward_smoothing, such as {decay: 0.99, by: mean}"
_COMPILED = (
    "torch.compile is parallel.fsdp.compile of a run on GPUs; its mode reduce-overhead needs "
    "shapes that stay the same, and batches of responses have many"
)
_REFUSED = {
    **dict.fromkeys(("reward_ema", "ema_alpha", "use_reward_ema", "reward_ema_decay"), _EMA),
    **dict.fromkeys(("compile", "torch_compile", "compile_mode"), _COMPILED),
    "strategy": ELSEWHERE["strategy"],
}
"""Settings that tutorials have, with what serves instead."""
_ONE_PROCESS: Mapping[str, tuple[Any, ...]] = {"num_rollout_workers": (1,), "use_fsdp": (False,)}
"""Values of keys of runs that a trainer of one process has anyway."""
_LOGGER = logging.getLogger("verl_hpc.config")
_ADVANTAGES = members(advantages, Advantage)


class PPOConfig(Section):
    """What `PPOTrainer(config={...})` takes; another name is an error."""

    batch_size: Positive | None = None
    """Responses of one optimizer step; without it all that a step has."""
    num_samples: Positive = 1
    """Responses to each prompt."""
    kl_coef: NonNegativeFinite = 0.1
    """Weight of the KL divergence from the weights at the start, which is taken off the reward;
    0 computes none."""
    lr: PositiveRate = 1e-6
    """Learning rate of the actor."""
    ppo_epochs: Positive = 1
    """Passes over a step's responses."""
    temperature: PositiveFinite = 1.0
    """Temperature that responses are sampled at."""
    max_prompt_length: Positive = 512
    """Longest prompt, in tokens."""
    max_response_length: Positive = 64
    """Longest response, in tokens."""
    critic_lr: PositiveRate = 1e-5
    """Learning rate of the critic."""
    clip_range: Fraction = 0.2
    """How far the ratio of new to old probability is clipped, either way."""
    gamma: Fraction = 1.0
    """Discount of a reward for each token that it comes later; with a critic."""
    lam: Fraction = 1.0
    """GAE's lambda; with a critic."""
    adv_estimator: str | None = None
    """One of docs/algorithms.md; without it gae with a critic, else reinforce_plus_plus."""
    adam_eps: PositiveRate = 1e-8
    """Term that Adam adds to its denominator."""
    train_micro_batch_size_per_gpu: Positive | None = None
    """Responses of one backward pass, each counted as long as the longest may be; None takes as
    many as batch.max_tokens_per_micro_batch has room for."""
    rollout_per_device_batch_size: Positive | None = None
    """Responses that are generated at a time."""
    rollout_batch_size: Positive | None = None
    """Prompts that are answered at a time, and that `train` takes for a step; None answers all of
    a step together, and `train` takes 8."""
    reward_smoothing: SmoothingConfig | None = None
    """Rewards are measured against a moving average of those of earlier steps, which a checkpoint's
    training state keeps: reward.smoothing of a run."""
    seed: Seed = 0
    """Seed of the samples."""
    output_dir: PathText = "runs"
    """Where profiles go, below the namespace."""
    replay: bool = False
    """Steps are trained on responses of earlier weights, too (ReplayBuffer): tokens are weighted by
    how likely they have become, as algorithm.correction does. Otherwise they are an error."""
    enable_profiling: bool = False
    """Every step is traced by torch.profiler, into output_dir."""
    enable_debug_mode: bool = False
    """Torch says which operation of a forward pass made a gradient NaN, and `debug_values` has all
    values of the newest step; both cost time and memory."""
    allow_unsafe_operations: bool = False
    """Take models whose code came with their weights (trust_remote_code)."""


def parse_ppo(config: Mapping[str, Any] | PPOConfig | None) -> PPOConfig:
    """Check settings.

    Raises:
        ConfigError: a name that does not exist, or a value that is not allowed.
    """
    if isinstance(config, PPOConfig):
        return config
    given: dict[str, Any] = {}
    for name, value in (config or {}).items():
        given |= _by_our_name(name, plain_number(value))
    for name in given:
        if name in _REFUSED:
            raise ConfigError(f"PPOTrainer config: {name} is not there: {_REFUSED[name]}")
    if given.get("batch_size") == "auto":
        raise ConfigError(
            "PPOTrainer config: batch_size = auto: memory is known before a run, and not tried out "
            "in it: `python -m verl_hpc plan` says what fits; give a number"
        )
    try:
        return PPOConfig.model_validate(given)
    except ValidationError as error:
        raise ConfigError("PPOTrainer config:\n" + explain(error, PPOConfig)) from None


def _by_our_name(name: str, value: Any) -> dict[str, Any]:
    """Return a setting by its name here: keys of a tutorial's YAML file are known, too.

    Raises:
        ConfigError: a key that only runs have.
    """
    tutorials, fields = older().tutorials, PPOConfig.model_fields
    if value in _ONE_PROCESS.get(name, ()):
        return {}
    if name in fields or name not in tutorials:
        return {name: value}
    key = tutorials[name].key
    # batch_size is left out: in a file it means the prompts of a step.
    for field in fields.keys() - {"batch_size"}:
        if field in tutorials and tutorials[field].key == key:
            return {field: value}
    row = find(key)
    if row is not None and row.fate == "any":
        _LOGGER.warning("PPOTrainer config: %s changes no number: %s", name, row.says)
        return {}
    raise ConfigError(
        f"PPOTrainer config: {name} = {shown(value)} is of runs: `python -m verl_hpc train` takes "
        "it from a YAML file (docs/migrating_from_verl.md); a trainer in Python is one process"
    )


def run_config(
    config: PPOConfig, actor: torch.nn.Module, has_critic: bool, *, name: str, num_prompts: int
) -> RunConfig:
    """Return the configuration of a run whose steps have so many prompts.

    Raises:
        ConfigError: settings that do not go together, or an actor in another element type.
    """
    dtype = str(next(actor.parameters()).dtype).removeprefix("torch.")
    if dtype not in ("float32", "bfloat16", "float16"):
        raise ConfigError(
            f"actor_model is in {dtype}; expected float32, bfloat16 or float16: model.to(...)"
        )
    at_a_time = config.rollout_batch_size and config.rollout_batch_size * config.num_samples
    limits = [n for n in (at_a_time, config.rollout_per_device_batch_size) if n is not None]
    longest = config.max_prompt_length + config.max_response_length
    micro_batch = config.train_micro_batch_size_per_gpu
    verify: dict[str, Any] = {"on_mismatch": "correct"} if config.replay else {}
    if dtype == "float16":
        verify["probe_tolerance"] = 0.1  # as bfloat16's
    smoothing = config.reward_smoothing and config.reward_smoothing.model_dump()
    clip = {"clip_low": config.clip_range, "clip_high": config.clip_range}
    tree: dict[str, Any] = {
        "name": name,
        "recipe": "rl",
        "steps": 2**31 - 1,
        "seed": config.seed,
        "directory": config.output_dir,
        "model": {"path": "of-this-process", "dtype": "bfloat16" if dtype != "float32" else dtype},
        "optimizer": {"lr": config.lr, "epsilon": config.adam_eps},
        "reward": {"smoothing": smoothing},
        "rollout": {
            "engine": "hf",
            "num_samples": config.num_samples,
            "temperature": config.temperature,
            "max_prompt_tokens": config.max_prompt_length,
            "max_response_tokens": config.max_response_length,
            "max_num_seqs": min(limits, default=None),
            "verify": verify,
        },
        "algorithm": {
            "advantage": _advantage(config, has_critic),
            "loss": {"name": "ppo_clip", **clip},
            "kl": {"placement": "reward", "coefficient": config.kl_coef}
            if config.kl_coef
            else {"placement": "none"},
        },
        "batch": {
            "size": num_prompts,
            "mini_batches": _mini_batches(num_prompts * config.num_samples, config.batch_size),
            "update_epochs": config.ppo_epochs,
            **({"max_tokens_per_micro_batch": micro_batch * longest} if micro_batch else {}),
        },
        "data": {"train": {"kind": "files", "paths": ["of-this-process"]}, "chat": "never"},
    }
    if has_critic:
        tree["roles"] = {
            "critic": {"optimizer": {"lr": config.critic_lr, "epsilon": config.adam_eps}}
        }
    return parse_config(tree, "PPOTrainer config")


def _advantage(config: PPOConfig, has_critic: bool) -> dict[str, Any]:
    """Return the section algorithm.advantage.

    Raises:
        ConfigError: an estimator that needs what a trainer of one process has not.
    """
    # Without a critic: it compares the responses of a whole step, so that one a prompt is enough.
    name = config.adv_estimator or ("gae" if has_critic else "reinforce_plus_plus")
    needs = _ADVANTAGES[name].needs if name in _ADVANTAGES else ()
    refusals = {
        near_or_all(name, _ADVANTAGES): name not in _ADVANTAGES,
        "needs a critic_model": name == "gae" and not has_critic,
        "uses no critic; leave critic_model out": name != "gae" and has_critic,
        "needs greedy responses or process rewards, which a step in one process does not make; "
        "start a run with `python -m verl_hpc train`": {"greedy", "process_rewards"} & {*needs},
        "has no gamma and no lam; leave them out": name != "gae"
        and (config.gamma, config.lam) != (1.0, 1.0),
    }
    for words, applies in refusals.items():
        if applies:
            raise ConfigError(f"PPOTrainer config: adv_estimator = {name}: {words}")
    values = {"gamma": config.gamma, "lam": config.lam} if name == "gae" else {}
    return {"name": name, **values}


def _mini_batches(num_responses: int, batch_size: int | None) -> int:
    if batch_size is None or batch_size >= num_responses:
        return 1
    if num_responses % batch_size:
        raise ConfigError(
            f"PPOTrainer config: batch_size = {batch_size} does not divide the {num_responses} "
            "responses of a step; give a divisor, or step with another number of prompts"
        )
    return num_responses // batch_size
