"""Losses of pairs: the kinds of recipe dpo, each a class whose `name` is a `Literal`.

In their formulas l is the log-prob of an answer, m the mean log-prob of its tokens, a its log-ratio
to the reference and r = beta a its implicit reward; _c and _r are of the chosen and the rejected
answer, and h = a_c - a_r.
"""

from __future__ import annotations

import math
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from verl_hpc.algorithms.lazy import torch
from verl_hpc.algorithms.preference import Answers, PreferenceLoss
from verl_hpc.section import NonNegativeFinite, Number, PositiveFinite

_LARGEST = -1e-7
"""Mean log-prob, of which a probability below 1 is left in float32."""


def _log_sigmoid(x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.logsigmoid(x)


class _Margin(PreferenceLoss):
    """A loss that compares the implicit rewards of both answers."""

    def margin(self, chosen: Answers, rejected: Answers) -> torch.Tensor:
        """(B,): beta h."""
        return self.beta * (chosen.log_ratios - rejected.log_ratios)

    def log_chances(self, chosen: Answers, rejected: Answers) -> tuple[torch.Tensor, torch.Tensor]:
        """log sigmoid(beta h) and log sigmoid(-beta h): of ranking a pair as it is labelled, and of
        the other way round."""
        margin = self.margin(chosen, rejected)
        return _log_sigmoid(margin), _log_sigmoid(-margin)


class Dpo(_Margin):
    """The log-loss of ranking the chosen answer first by the implicit rewards (arXiv 2305.18290,
    equation 7), with label smoothing (cDPO)."""

    name: Literal["dpo"] = "dpo"
    label_smoothing: Annotated[Number, Field(ge=0.0, le=0.5)] = 0.0
    """Share of pairs that are taken to be the wrong way round (E. Mitchell, "A note on DPO with
    noisy preferences", 2023)."""

    def __call__(self, chosen: Answers, rejected: Answers) -> torch.Tensor:
        """-(1 - e) log sigmoid(beta h) - e log sigmoid(-beta h)."""
        right, wrong = self.log_chances(chosen, rejected)
        return -(1 - self.label_smoothing) * right - self.label_smoothing * wrong


class Robust(_Margin):
    """DPO's loss, unbiased where pairs are mislabelled at a known rate: its expectation under
    flipped pairs is that under the true ones (arXiv 2403.00409)."""

    name: Literal["robust"] = "robust"
    label_smoothing: Annotated[Number, Field(ge=0.0, lt=0.5)] = 0.1
    """Share of pairs that are the wrong way round."""

    def __call__(self, chosen: Answers, rejected: Answers) -> torch.Tensor:
        """(-(1 - e) log sigmoid(beta h) + e log sigmoid(-beta h)) / (1 - 2 e)."""
        right, wrong = self.log_chances(chosen, rejected)
        rate = self.label_smoothing
        return (-(1 - rate) * right + rate * wrong) / (1 - 2 * rate)


class Exo(_Margin):
    """The reverse KL divergence of the policy's preference from the data's (EXO for pairs, arXiv
    2402.00856, equation 16)."""

    name: Literal["exo"] = "exo"
    label_smoothing: Annotated[Number, Field(gt=0.0, lt=0.5)] = 1e-3
    """Share of pairs that are taken to be the wrong way round; without any, the divergence is
    infinite."""

    def __call__(self, chosen: Answers, rejected: Answers) -> torch.Tensor:
        """p log(p / (1 - e)) + (1 - p) log((1 - p) / e), p = sigmoid(beta h)."""
        right, wrong = self.log_chances(chosen, rejected)
        of_right = right - math.log1p(-self.label_smoothing)
        return right.exp() * of_right + wrong.exp() * (wrong - math.log(self.label_smoothing))


class Hinge(_Margin):
    """A hinge on the implicit rewards: no gradient once they are 1 apart (SLiC, arXiv
    2305.10425)."""

    name: Literal["hinge"] = "hinge"

    def __call__(self, chosen: Answers, rejected: Answers) -> torch.Tensor:
        """max(0, 1 - beta h) (arXiv 2309.06657)."""
        return torch.relu(1 - self.margin(chosen, rejected))


class Dpop(_Margin):
    """DPO with a penalty where the chosen answer becomes less likely than the reference has it
    (DPO-Positive, arXiv 2402.13228)."""

    name: Literal["dpop"] = "dpop"
    penalty: NonNegativeFinite = 50.0
    """The paper's lambda."""

    def __call__(self, chosen: Answers, rejected: Answers) -> torch.Tensor:
        """-log sigmoid(beta (h - lambda max(0, -a_c)))."""
        lost = self.beta * self.penalty * torch.relu(-chosen.log_ratios)
        return -_log_sigmoid(self.margin(chosen, rejected) - lost)


class Ipo(PreferenceLoss):
    """A margin to reach and not to pass, by which pairs that are always right do not overfit (arXiv
    2310.12036, equation 17)."""

    name: Literal["ipo"] = "ipo"

    def __call__(self, chosen: Answers, rejected: Answers) -> torch.Tensor:
        """(h - 1 / (2 beta))^2, each a divided by the answer's length as TRL does; beta is the
        paper's tau."""
        better, worse = (a.log_ratios / a.lengths.clamp(min=1) for a in (chosen, rejected))
        return (better - worse - 1 / (2 * self.beta)).square()


class Sppo(PreferenceLoss):
    """A log-ratio to reach for each answer by itself (SPPO with hard labels, arXiv 2405.00675)."""

    name: Literal["sppo"] = "sppo"

    def __call__(self, chosen: Answers, rejected: Answers) -> torch.Tensor:
        """(a_c - 1 / (2 beta))^2 + (a_r + 1 / (2 beta))^2; beta is the inverse of the paper's
        eta."""
        target = 1 / (2 * self.beta)
        return (chosen.log_ratios - target).square() + (rejected.log_ratios + target).square()


class Apo(PreferenceLoss):
    """Anchored: each answer's likelihood is pushed in a direction of its own (arXiv 2408.06266)."""

    name: Literal["apo"] = "apo"
    anchor: Literal["zero", "down"] = "zero"
    """zero: the chosen answer up and the rejected one down, where chosen answers are better than
    the model's; down: both down, the rejected one further, where they are worse."""

    def __call__(self, chosen: Answers, rejected: Answers) -> torch.Tensor:
        """zero: 1 - sigmoid(r_c) + sigmoid(r_r); down: sigmoid(r_c) + 1 - sigmoid(r_c - r_r)."""
        better, worse = self.rewards(chosen), self.rewards(rejected)
        if self.anchor == "zero":
            return torch.sigmoid(-better) + torch.sigmoid(worse)
        return torch.sigmoid(better) + torch.sigmoid(worse - better)


class Nca(PreferenceLoss):
    """Noise-contrastive: keeps the chosen answer's likelihood from falling with the rejected's (NCA
    for pairs, arXiv 2402.05369, which also learns absolute likelihoods)."""

    name: Literal["nca"] = "nca"

    def __call__(self, chosen: Answers, rejected: Answers) -> torch.Tensor:
        """-log sigmoid(r_c) - log sigmoid(-r_c) / 2 - log sigmoid(-r_r) / 2; TRL's nca_pair."""
        better, worse = self.rewards(chosen), self.rewards(rejected)
        return -_log_sigmoid(better) - 0.5 * (_log_sigmoid(-better) + _log_sigmoid(-worse))


class Cpo(PreferenceLoss):
    """DPO against a uniform reference, and imitation of the chosen answer (arXiv 2401.08417)."""

    name: Literal["cpo"] = "cpo"
    sft_weight: NonNegativeFinite = 1.0
    """Weight of imitating the chosen answer: minus the mean log-prob of its tokens."""
    reference_free: ClassVar[bool] = True

    def __call__(self, chosen: Answers, rejected: Answers) -> torch.Tensor:
        """-log sigmoid(beta (l_c - l_r))."""
        return -_log_sigmoid(self.rewards(chosen) - self.rewards(rejected))

    def rewards(self, answers: Answers) -> torch.Tensor:
        """(B,): beta times the log-prob of an answer."""
        return self.beta * answers.log_probs


class Simpo(PreferenceLoss):
    """The mean log-prob of a token as the reward, and a margin to win by; no reference (arXiv
    2405.14734, equation 6)."""

    name: Literal["simpo"] = "simpo"
    beta: PositiveFinite = 2.0
    """Scale of the rewards."""
    gamma: NonNegativeFinite = 1.0
    """Margin of the rewards."""
    reference_free: ClassVar[bool] = True

    def __call__(self, chosen: Answers, rejected: Answers) -> torch.Tensor:
        """-log sigmoid(beta (m_c - m_r) - gamma)."""
        return -_log_sigmoid(self.rewards(chosen) - self.rewards(rejected) - self.gamma)


class Orpo(PreferenceLoss):
    """Imitation of the chosen answer, and the odds of it against the rejected; no reference (arXiv
    2403.07691, equations 3 to 7)."""

    name: Literal["orpo"] = "orpo"
    beta: PositiveFinite = 0.1
    """Weight of the odds ratio, the paper's lambda."""
    sft_weight: NonNegativeFinite = 1.0
    """Weight of imitating the chosen answer: minus the mean log-prob of its tokens."""
    reference_free: ClassVar[bool] = True

    def __call__(self, chosen: Answers, rejected: Answers) -> torch.Tensor:
        """-beta log sigmoid(log odds_c - log odds_r), odds = p / (1 - p), log p = m, at most
        -1e-7."""
        better, worse = (a.mean_log_probs.clamp(max=_LARGEST) for a in (chosen, rejected))
        odds = better - torch.log(-torch.expm1(better)) - worse + torch.log(-torch.expm1(worse))
        return -self.beta * _log_sigmoid(odds)
