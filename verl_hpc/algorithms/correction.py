"""Correcting for tokens that another policy sampled than the one that the loss starts from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import model_validator

from verl_hpc.algorithms.lazy import torch
from verl_hpc.algorithms.log_ratio import bounded
from verl_hpc.algorithms.masked import Reduce, alone, masked_mean
from verl_hpc.section import NonNegativeFinite, PositiveFinite, Section, chosen_by

_LEAST_MEAN = 1e-8
"""Smallest mean weight to divide by; below it the ratios carry no information (verl)."""


def _check_holds_one(lower: float, upper: float) -> None:
    if not lower <= 1.0 <= upper:
        raise ValueError(
            f"lower = {lower:g} and upper = {upper:g}: lower is at most 1, and upper at least 1, "
            "the ratio where engine and trainer agree"
        )


class RejectConfig(Section):
    """Sequences that the trainer finds too likely, or too unlikely, are not trained on."""

    ratio: Literal["product", "geometric_mean"] = "geometric_mean"
    """Combination of a sequence's token ratios; the geometric mean does not grow with the
    length."""
    lower: Annotated[NonNegativeFinite, chosen_by("ratio")]
    """Smallest ratio of a sequence that is trained on; such as 0.99 of a geometric mean."""
    upper: Annotated[PositiveFinite, chosen_by("ratio")]
    """Largest one; such as 1.01 of a geometric mean."""

    @model_validator(mode="after")
    def _holds_one(self) -> RejectConfig:
        _check_holds_one(self.lower, self.upper)
        return self


class CorrectionConfig(Section):
    """Weights for tokens, by the trainer's probability over that of the weights that sampled."""

    weights: Literal["token", "sequence", "none"] = "token"
    """The ratio that a token's loss is multiplied with: its own, that of its whole sequence, or
    none."""
    upper: Annotated[PositiveFinite, chosen_by("weights")] = 2.0
    """Largest weight."""
    outside: Literal["truncate", "leave_out"] = "truncate"
    """Treatment of a ratio beyond the bounds: the weight is `upper` (truncated importance
    sampling), or the token, or its sequence, is not trained on (IcePop)."""
    lower: Annotated[NonNegativeFinite, chosen_by("weights")] = 0.0
    """Smallest ratio that is trained on; needs outside: leave_out."""
    normalise: bool = False
    """Divide weights by their mean over what is trained on of the step: over tokens, or with
    weights: sequence over sequences."""
    reject: RejectConfig | None = None
    """Leave out whole sequences by the ratio of their tokens together; null leaves out none."""

    @model_validator(mode="after")
    def _agrees(self) -> CorrectionConfig:
        if self.weights == "none":
            if self.reject is None:
                raise ValueError("weights: none corrects by reject alone; give reject, or weights")
            unread = ("lower", "upper", "outside", "normalise")
            self._check_unchanged(unread, "weights: none")
        if self.lower and self.outside == "truncate":
            raise ValueError(
                f"lower = {self.lower:g} with outside: truncate, which bounds weights from above "
                "alone; set outside: leave_out, or leave lower out"
            )
        if self.lower >= self.upper:
            raise ValueError(f"lower = {self.lower:g} is not below upper = {self.upper:g}")
        _check_holds_one(self.lower, self.upper)
        return self


@dataclass(frozen=True)
class Corrected:
    """Tokens of a step that are trained on, and their weights; both (B, T)."""

    weights: torch.Tensor
    mask: torch.Tensor
    """Mask with 0 also for tokens that are left out."""
    metrics: dict[str, float]
    """Metrics over all ranks: correction_weight, the mean over tokens that are trained on, and as
    shares of all tokens correction_truncated (ratio beyond the bounds) and correction_left_out."""


def correct(
    config: CorrectionConfig,
    rollout_log_probs: torch.Tensor,
    old_log_probs: torch.Tensor,
    mask: torch.Tensor,
    reduce: Reduce = alone,
) -> Corrected:
    """Weights and mask of a step's tokens, (B, T), from the log-probs of what was sampled.

    With r = exp(old - rollout), the log-ratio clamped to +-20, the weight is min(r, upper). Times
    the clipped loss whose ratio starts from `old`, this is the decoupled objective (arXiv
    2110.00641, 2505.24298); the bound trades a little bias for less variance (arXiv 1802.01561).
    Of a sequence r is the product over its tokens. IcePop: arXiv 2510.18855, section 3.

    Args:
        config: the ratio and its bounds.
        rollout_log_probs: under the policy that sampled.
        old_log_probs: under the policy that the loss starts from.
        mask: 1 where a token counts.
        reduce: sums over data-parallel ranks.
    """
    counts = mask.bool()
    log_ratio = torch.where(counts, old_log_probs - rollout_log_probs, 0)
    ratio = torch.ones_like(log_ratio)
    if config.weights != "none":
        summed = log_ratio.sum(-1, keepdim=True).expand_as(log_ratio)
        ratio = bounded(log_ratio if config.weights == "token" else summed).exp()
    beyond = (ratio > config.upper) | (ratio < config.lower)
    kept = counts & ~beyond if config.outside == "leave_out" else counts
    if config.reject is not None:
        kept = kept & _accepted(config.reject, log_ratio, counts)
    weights = torch.where(kept, ratio.clamp(max=config.upper), 0)
    mean = masked_mean(weights, kept, reduce)
    if config.normalise:
        is_of_sequences = config.weights == "sequence"
        divisor = _mean_of_sequences(weights, kept, reduce) if is_of_sequences else mean
        weights = weights / torch.where(divisor > _LEAST_MEAN, divisor, 1)
    metrics = {
        "correction_weight": float(mean),
        "correction_truncated": float(masked_mean(beyond.to(ratio), counts, reduce)),
        "correction_left_out": float(masked_mean((~kept).to(ratio), counts, reduce)),
    }
    return Corrected(weights, kept.to(mask), metrics)


def _mean_of_sequences(weights: torch.Tensor, kept: torch.Tensor, reduce: Reduce) -> torch.Tensor:
    """The mean of weights (B, T), which the tokens of a sequence share, over the sequences that
    have a token that is kept."""
    lengths = kept.sum(-1)
    return masked_mean(weights.sum(-1) / lengths.clamp(min=1), lengths > 0, reduce)


def _accepted(config: RejectConfig, log_ratio: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """(B, 1): whether a sequence is trained on. Each token's log-ratio is clamped, as in verl."""
    total = bounded(log_ratio).sum(-1, keepdim=True)
    if config.ratio == "geometric_mean":
        total = total / counts.sum(-1, keepdim=True).clamp(min=1)
    ratio = total.exp()
    return (ratio >= config.lower) & (ratio <= config.upper)
