"""Scores measured against a moving average of those of earlier steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from verl_hpc.config.reward import SmoothingConfig
from verl_hpc.step.number import Number
from verl_hpc.step.operator import Metrics, operator
from verl_hpc.step.placement import Placement
from verl_hpc.step.scores import Scores

_LEAST_VARIANCE = 1e-8


@dataclass(frozen=True)
class SmoothSettings:
    """What is kept from step to step: in a checkpoint, too."""

    smoothing: SmoothingConfig
    mean: Number
    """Average of means, 0 at the start."""
    square: Number
    """Average of means of squares, 0 at the start."""
    weight: Number
    """1 - decay^steps: what both averages are divided by."""


@operator("smoothed_scores", shared=("smoothed_scores",), changes_state=True)
def smooth(place: Placement, settings: SmoothSettings, scores: Scores) -> tuple[Scores, Metrics]:
    """As `SmoothingConfig`; the averages take in the scores of this step first."""
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
    """Mean and deviation after one more step."""
    new = {
        "mean": sum(scores) / len(scores),
        "square": sum(score**2 for score in scores) / len(scores),
        "weight": 1.0,
    }
    decay = settings.smoothing.decay
    for name, value in new.items():
        number: Number = getattr(settings, name)
        number.value = decay * number.value + (1.0 - decay) * value
    mean = settings.mean.value / settings.weight.value
    variance = settings.square.value / settings.weight.value - mean**2
    return mean, float((max(variance, 0.0) + _LEAST_VARIANCE) ** 0.5)
