"""Compare the rollout engine's log-probs with the trainer's."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

import torch

from verl_hpc.algorithms.off_policy import off_policy
from verl_hpc.config.run import RunConfig
from verl_hpc.errors import TrainingError
from verl_hpc.metrics.names import ENTROPY, LOG_PROBS_DIFFERENCE
from verl_hpc.step.batch import MASK, ROLLOUT_LOG_PROBS, Columns, padded
from verl_hpc.step.placement import Placement

_logger = logging.getLogger(__name__)

_LARGEST = "training/rollout_log_probs_diff_max"
_TOLERANCE = {"float32": 1e-4, "bfloat16": 0.1, "fp8": 0.3}


def compare(
    place: Placement,
    sequences: Columns,
    log_probs: Sequence[torch.Tensor],
    entropies: Sequence[torch.Tensor],
) -> dict[str, float]:
    """Compare the trainer's log-probs of this rank's samples with the rollout's, over all ranks.

    Returns:
        Over all tokens that the model wrote, the mean and the largest absolute difference, the
        policy's mean entropy, and the statistics of `algorithms.off_policy`.
    """
    sampled, masks = sequences[ROLLOUT_LOG_PROBS], sequences[MASK]
    sums, largest = torch.zeros(3, dtype=torch.float64, device=place.device), 0.0
    for ours, theirs, entropy, mask in zip(log_probs, sampled, entropies, masks, strict=True):
        counts = mask.double()
        differences = (ours - theirs).abs().double() * counts
        entropy = entropy.double() * counts
        sums += torch.stack([differences.sum(), entropy.sum(), counts.sum()])
        if len(differences):
            largest = max(float(differences.max()), largest)
    total, entropy_sum, count = place.reduce(sums).tolist()
    largest = place.control.max(largest)
    statistics = off_policy(
        padded(sampled, place.device),
        padded(log_probs, place.device),
        padded(masks, place.device),
        place.reduce,
    )
    metrics = {f"rollout_corr/{name}": value for name, value in statistics.items()}
    metrics[LOG_PROBS_DIFFERENCE] = total / max(count, 1.0)
    metrics[_LARGEST] = largest
    metrics[ENTROPY] = entropy_sum / max(count, 1.0)
    return metrics


def check(place: Placement, config: RunConfig, metrics: Mapping[str, float]) -> None:
    """Check what `compare` returned.

    Raises:
        TrainingError: on every rank, if the difference is too large.
    """
    verify, mean = config.rollout.verify, metrics[LOG_PROBS_DIFFERENCE]
    tolerance = verify.probe_tolerance or default_tolerance(config)
    # Responses of older weights are expected to differ; NaN is not within the tolerance.
    if not verify.probe or config.rollout.staleness or mean <= tolerance:
        return
    text = mismatch_text(mean, metrics[_LARGEST], tolerance, verify.checksums)
    if verify.on_mismatch == "stop":
        raise place.alike(TrainingError(f"{text}. Nothing was trained on these responses"))
    if place.leads:
        _logger.warning("%s", text)


def default_tolerance(config: RunConfig) -> float:
    """Return the largest mean difference that the coarser of the engines' number formats
    explains; none with kernels that do not depend on the batch."""
    if config.rollout.batch_invariant:
        return 0.0
    if config.model.fp8 is not None or config.rollout.is_quantised:
        return _TOLERANCE["fp8"]
    coarse = "bfloat16" in (config.model.dtype, config.rollout.dtype)
    return _TOLERANCE["bfloat16" if coarse else "float32"]


def mismatch_text(mean: float, largest: float, tolerance: float, checksums: bool) -> str:
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
        f"log-probs of the sampled tokens differ by {mean:.3g} on average (largest "
        f"{largest:.3g}) between the rollout engine and the trainer, more than "
        f"rollout.verify.probe_tolerance = {tolerance:g}: {reason}"
    )
