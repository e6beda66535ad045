"""ORPO (arXiv 2403.07691, equations 3 to 7)."""

from __future__ import annotations

from typing import ClassVar, Literal

from verl_hpc.algorithms.lazy import torch
from verl_hpc.algorithms.preference import Answers, PreferenceLoss
from verl_hpc.section import NonNegativeFinite, PositiveFinite

_LARGEST = -1e-7
"""Mean log-prob, of which a probability below 1 is left in float32."""


class Orpo(PreferenceLoss):
    """Imitation of the chosen answer, and the odds of it against the rejected; no reference."""

    name: Literal["orpo"] = "orpo"
    beta: PositiveFinite = 0.1
    """Weight of the odds ratio, the paper's lambda."""
    sft_weight: NonNegativeFinite = 1.0
    """Weight of imitating the chosen answer: minus the mean log-prob of its tokens."""
    reference_free: ClassVar[bool] = True

    def __call__(self, chosen: Answers, rejected: Answers) -> torch.Tensor:
        """-beta log sigmoid(log odds_c - log odds_r), odds = p / (1 - p), log p the mean log-prob
        of an answer's tokens, at most -1e-7."""
        better, worse = (_log_odds(answers.mean_log_probs) for answers in (chosen, rejected))
        return -self.beta * torch.nn.functional.logsigmoid(better - worse)


def _log_odds(log_prob: torch.Tensor) -> torch.Tensor:
    below = log_prob.clamp(max=_LARGEST)
    return below - torch.log(-torch.expm1(below))
