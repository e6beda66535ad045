"""Losses of preferring one of two answers, by the answers' log-probs or scores."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from verl_hpc.algorithms.lazy import torch
from verl_hpc.section import NonNegativeFinite, OwnName, OwnSection, PositiveFinite, Section


@dataclass(frozen=True)
class Answers:
    """An answer to each of B prompts, all (B,)."""

    log_probs: torch.Tensor
    """Sums over the tokens that count; differentiable."""
    lengths: torch.Tensor
    """How many tokens count."""
    ref_log_probs: torch.Tensor | None = None
    """Sums under the reference, for a loss that has one."""

    @property
    def log_ratios(self) -> torch.Tensor:
        """log pi(y|x) - log pi_ref(y|x)."""
        assert self.ref_log_probs is not None
        return self.log_probs - self.ref_log_probs

    @property
    def mean_log_probs(self) -> torch.Tensor:
        """Mean log-prob of an answer's tokens; 0 where none counts."""
        return self.log_probs / self.lengths.clamp(min=1)

    def pairs(self) -> tuple[Answers, Answers]:
        """The chosen and the rejected ones, of neighbours in this order."""
        chosen, rejected = (
            Answers(
                self.log_probs[first::2],
                self.lengths[first::2],
                None if self.ref_log_probs is None else self.ref_log_probs[first::2],
            )
            for first in (0, 1)
        )
        return chosen, rejected


def answers_of(
    log_probs: torch.Tensor, mask: torch.Tensor, ref_log_probs: torch.Tensor | None = None
) -> Answers:
    """Sum log-probs of tokens, (B, T) each, over each answer; those where the mask is 0 may be
    anything.

    Sums are float64: those of long answers are hundreds, and losses are of their differences.
    """
    counts = mask.bool()

    def total(per_token: torch.Tensor) -> torch.Tensor:
        return torch.where(counts, per_token, 0).sum(-1, dtype=torch.float64)

    return Answers(
        total(log_probs),
        counts.sum(-1, dtype=torch.float64),
        None if ref_log_probs is None else total(ref_log_probs),
    )


class PreferenceLoss(Section):
    """A loss of recipe dpo: its fields are the settings of `algorithm.preference`.

    One is a class in a file of this package's `preferences`, or in a file of the user's
    (`algorithm.preference.name: path/file.py:Name`). Calling it gives losses of pairs.
    """

    name: str
    beta: PositiveFinite = 0.1
    """How closely the reference is kept to: the larger, the closer."""
    sft_weight: NonNegativeFinite = 0.0
    """Weight of an additional imitation of the chosen answer: minus the mean log-prob of its tokens
    (arXiv 2404.19733; TRL's rpo_alpha)."""
    reference_free: ClassVar[bool] = False
    """Whether it does without log-probs under the reference, which then is no role of the run."""

    def __call__(self, chosen: Answers, rejected: Answers) -> torch.Tensor:
        """Losses of B pairs, (B,), without the one of sft_weight."""
        raise NotImplementedError

    def rewards(self, answers: Answers) -> torch.Tensor:
        """(B,): what answers are worth by the policy, for metrics and evaluation: beta times the
        log-ratio to the reference, or else times the mean log-prob of a token."""
        return self.beta * (answers.mean_log_probs if self.reference_free else answers.log_ratios)


class OwnPreference(PreferenceLoss, OwnSection):
    """One of the user's, before its file is loaded."""

    name: OwnName


def bradley_terry(chosen: torch.Tensor, rejected: torch.Tensor) -> torch.Tensor:
    """Losses of pairs, (B,): -log sigmoid(chosen - rejected) (arXiv 2203.02155, equation 1).

    Args:
        chosen: (B,) scores of the better answers.
        rejected: (B,) scores of the worse answers to the same prompts.
    """
    return -torch.nn.functional.logsigmoid(chosen - rejected)
