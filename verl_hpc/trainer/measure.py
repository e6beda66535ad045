"""A step's values as metrics, in verl's names where it has one."""

from __future__ import annotations

import logging
import resource
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from verl_hpc.trainer.batch import Samples
from verl_hpc.trainer.operators.advantages import KlInReward
from verl_hpc.trainer.operators.infer import Mismatch
from verl_hpc.trainer.operators.score import Scores
from verl_hpc.trainer.workers import Workers

_logger = logging.getLogger(__name__)

_GIB = 2**30


DROPPED = "prompt_length/num_dropped"
"""Prompts of a step that were left out for being too long."""


def step_metrics(values: Mapping[str, Any]) -> dict[str, float]:
    """Metrics of everything a flow left behind; the same on every rank."""
    metrics: dict[str, float] = {}
    samples = values.get("samples")
    if isinstance(samples, Samples):
        metrics |= _lengths(samples)
    scores = values.get("scores")
    penalty = values.get("penalty")
    if isinstance(scores, Scores):
        metrics |= _scores(scores, penalty)
    mismatch = values.get("mismatch")
    if isinstance(mismatch, Mismatch):
        metrics["training/rollout_log_probs_diff_mean"] = mismatch.mean
        metrics["training/rollout_log_probs_diff_max"] = mismatch.max
        metrics["actor/entropy"] = mismatch.entropy
    if isinstance(penalty, KlInReward):
        metrics["actor/reward_kl_penalty"] = penalty.mean
        metrics["actor/reward_kl_penalty_coeff"] = penalty.coefficient
    for key in ("actor_metrics", "critic_metrics"):
        found = values.get(key) or {}
        assert metrics.keys().isdisjoint(found), "a metric is written twice"
        metrics |= found
    return metrics


def num_dropped(values: Mapping[str, Any], num_prompts: int) -> int:
    """How many of the prompts that a flow was given have no sample."""
    return num_prompts - len({sample.group for sample in values["samples"]})


def warn_of_dropped(workers: Workers, when: str, dropped: int, num_prompts: int) -> None:
    """Say in the log that prompts were left out for being too long; any rank may call it."""
    if dropped and workers.rank == 0:
        limit = workers.config.rollout.max_prompt_tokens
        text = "%s: %s of %s prompts dropped, longer than rollout.max_prompt_tokens = %s"
        _logger.warning(text, when, dropped, num_prompts, limit)


def _scores(scores: Scores, penalty: KlInReward | None) -> dict[str, float]:
    """Scores as the reward function gave them, and rewards: what a KL penalty leaves of them."""
    found = _spread("critic/score", scores.values)
    rewards = torch.tensor(scores.values, dtype=torch.float64)
    if penalty is not None:
        rewards -= penalty.per_sample
    found |= _spread("critic/rewards", rewards.tolist())
    found |= {f"reward/{name}": value for name, value in scores.extra.items()}
    if scores.num_failed:
        found["reward/num_failed"] = float(scores.num_failed)
    return found


def _lengths(samples: Samples) -> dict[str, float]:
    metrics = _spread("response_length", [s.response_length for s in samples])
    metrics |= _spread("prompt_length", [s.prompt_length for s in samples])
    metrics["response_length/clip_ratio"] = sum(s.truncated for s in samples) / len(samples)
    metrics["perf/total_num_tokens"] = float(sum(s.length for s in samples))
    return metrics


def _spread(name: str, values: Iterable[float]) -> dict[str, float]:
    found = list(values)
    return {
        f"{name}/mean": sum(found) / len(found),
        f"{name}/max": float(max(found)),
        f"{name}/min": float(min(found)),
    }


def memory_metrics() -> dict[str, float]:
    """Largest memory of this rank so far, in GiB."""
    kibibytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    metrics = {"perf/cpu_memory_used_gb": kibibytes * 1024 / _GIB}
    if torch.cuda.is_available():
        metrics["perf/max_memory_allocated_gb"] = torch.cuda.max_memory_allocated() / _GIB
        metrics["perf/max_memory_reserved_gb"] = torch.cuda.max_memory_reserved() / _GIB
    return metrics
