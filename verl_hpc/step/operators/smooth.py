"""Normalise scores by moving averages over steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from verl_hpc.config.reward import SmoothingConfig
from verl_hpc.step.batch import Scores
from verl_hpc.step.number import Number
from verl_hpc.step.operator import Metrics, operator
from verl_hpc.step.placement import Placement

_LEAST_VARIANCE = 1e-8


@dataclass(frozen=True)
class SmoothSettings:
    """The smoothing's settings, and its averages, which checkpoints hold."""

    smoothing: SmoothingConfig
    averages: Mapping[str, Number]
    """Moving averages of the scores' means (mean) and mean squares (square), and the divisor of
    both, 1 - decay^steps (weight); 0 at the start."""


@operator("smoothed_scores", shared=("smoothed_scores",), changes_state=True)
def smooth(place: Placement, settings: SmoothSettings, scores: Scores) -> tuple[Scores, Metrics]:
    """Normalise scores as `SmoothingConfig` describes, after updating the averages with this step's
    scores."""
    mean, std = _updated(settings, scores.values)
    smoothing = settings.smoothing
    scale = std if smoothing.by == "mean_and_std" else 1.0
    most = smoothing.clip if smoothing.clip is not None else float("inf")
    values = [min(max((value - mean) / scale, -most), most) for value in scores.values]
    per_token = {
        position: {token: earned / scale for token, earned in tokens.items()}
        for position, tokens in scores.per_token.items()
    }
    return replace(scores, values=values, per_token=per_token), {
        "reward/ema_mean": mean,
        "reward/ema_std": std,
    }


def _updated(settings: SmoothSettings, scores: Sequence[float]) -> tuple[float, float]:
    """Update the averages; return the mean and standard deviation."""
    new = {
        "mean": sum(scores) / len(scores),
        "square": sum(score**2 for score in scores) / len(scores),
        "weight": 1.0,
    }
    decay, averages = settings.smoothing.decay, settings.averages
    for name, value in new.items():
        averages[name].value = decay * averages[name].value + (1.0 - decay) * value
    weight = averages["weight"].value
    mean = averages["mean"].value / weight
    variance = averages["square"].value / weight - mean**2
    return mean, float((max(variance, 0.0) + _LEAST_VARIANCE) ** 0.5)
