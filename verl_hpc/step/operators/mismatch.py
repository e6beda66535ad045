"""Compare the rollout engine's log-probs with the trainer's."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from verl_hpc.algorithms.off_policy import off_policy
from verl_hpc.config.rollout import VerifyConfig
from verl_hpc.config.run import RunConfig
from verl_hpc.errors import TrainingError
from verl_hpc.step.batch import MASK, ROLLOUT_LOG_PROBS, Columns, padded
from verl_hpc.step.placement import Placement

_logger = logging.getLogger(__name__)

_TOLERANCE = {"float32": 1e-4, "bfloat16": 0.1, "fp8": 0.3}


@dataclass(frozen=True)
class MismatchSettings:
    """Largest allowed difference, and what happens above it."""

    verify: VerifyConfig
    tolerance: float
    stale: bool = False
    """Whether responses may be from older weights, so that a difference is expected."""

    @classmethod
    def from_config(cls, config: RunConfig) -> MismatchSettings:
        verify = config.rollout.verify
        tolerance = verify.probe_tolerance or default_tolerance(config)
        return cls(verify, tolerance, config.rollout.staleness > 0)


@dataclass(frozen=True)
class Mismatch:
    """Difference of log-probs over all tokens that the model wrote."""

    mean: float
    """Mean absolute difference of log-probs."""
    max: float
    entropy: float
    """Mean entropy of the policy, from the same pass."""
    statistics: Mapping[str, float] = field(default_factory=dict)
    """Statistics of `algorithms.off_policy`."""

    @property
    def metrics(self) -> dict[str, float]:
        return {
            **{f"rollout_corr/{name}": value for name, value in self.statistics.items()},
            "training/rollout_log_probs_diff_mean": self.mean,
            "training/rollout_log_probs_diff_max": self.max,
            "actor/entropy": self.entropy,
        }


def compare(
    place: Placement,
    sequences: Columns,
    log_probs: Sequence[torch.Tensor],
    entropies: Sequence[torch.Tensor],
) -> Mismatch:
    """Compare the trainer's log-probs of this rank's samples with the rollout's, over all ranks."""
    masks = [mask.double() for mask in sequences[MASK]]
    differences = [
        (ours - theirs).abs().double() * mask
        for ours, theirs, mask in zip(log_probs, sequences[ROLLOUT_LOG_PROBS], masks, strict=True)
    ]
    zero = torch.zeros((), dtype=torch.float64, device=place.device)
    sums = [
        sum((d.sum() for d in differences), zero),
        sum(((e.double() * m).sum() for e, m in zip(entropies, masks, strict=True)), zero),
        sum((m.sum() for m in masks), zero),
    ]
    total, entropy, count = place.reduce(torch.stack(sums)).tolist()
    largest = max([float(d.max()) for d in differences if len(d)] + [0.0])
    largest = place.control.max(largest)
    statistics = off_policy(
        padded(sequences[ROLLOUT_LOG_PROBS], place.device),
        padded(log_probs, place.device),
        padded(sequences[MASK], place.device),
        place.reduce,
    )
    return Mismatch(total / max(count, 1.0), largest, entropy / max(count, 1.0), statistics)


def check(place: Placement, settings: MismatchSettings, mismatch: Mismatch) -> None:
    """Raises: TrainingError: on every rank, if the difference is too large."""
    verify = settings.verify
    if not verify.probe or settings.stale or mismatch.mean <= settings.tolerance:  # NaN is not
        return
    text = mismatch_text(mismatch, settings.tolerance, verify.checksums)
    if verify.on_mismatch == "stop":
        raise place.alike(TrainingError(f"{text}. Nothing was trained on these responses"))
    if place.leads:
        _logger.warning("%s", text)


def default_tolerance(config: RunConfig) -> float:
    """Return the largest mean difference that the coarser of the engines' number formats
    explains."""
    if config.model.fp8 is not None or config.rollout.is_quantised:
        return _TOLERANCE["fp8"]
    coarse = "bfloat16" in (config.model.dtype, config.rollout.dtype)
    return _TOLERANCE["bfloat16" if coarse else "float32"]


def mismatch_text(mismatch: Mismatch, tolerance: float, checksums: bool) -> str:
    """Describe the difference, its possible causes, and what to do."""
    reason = (
        "the weights that the rollout engine received are those that were sent, by their "
        "checksums, so the two engines compute differently (number formats, kernels, a setting "
        "that only one knows). Compare model.dtype with rollout.dtype, raise the tolerance, or set "
        "rollout.verify.on_mismatch: warn"
        if checksums
        else "rollout.verify.checksums is false, so that weights which did not arrive are not "
        "ruled out; set it to true first"
    )
    return (
        f"log-probs of the sampled tokens differ by {mismatch.mean:.3g} on average (largest "
        f"{mismatch.max:.3g}) between the rollout engine and the trainer, more than "
        f"rollout.verify.probe_tolerance = {tolerance:g}: {reason}"
    )
