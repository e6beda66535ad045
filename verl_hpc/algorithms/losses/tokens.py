"""Losses of single tokens by the ratio of their new to their old probability."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from verl_hpc.algorithms.aggregation import Mode
from verl_hpc.algorithms.lazy import torch
from verl_hpc.algorithms.loss import PolicyLoss, Tokens
from verl_hpc.algorithms.masked import masked_sum
from verl_hpc.section import Fraction, NonNegativeFinite, Number, PositiveFinite, chosen_by


class PpoClip(PolicyLoss):
    """The ratio of new to old probability times the advantage, no better than at the clip."""

    name: Literal["ppo_clip"] = "ppo_clip"
    clip_low: Fraction = 0.2
    """How far below 1 the ratio of new to old probability is clipped (arXiv 1707.06347, equation
    7)."""
    clip_high: NonNegativeFinite = 0.2
    """How far above 1 it is clipped; 0.28 is DAPO's clip-higher (arXiv 2503.14476)."""
    dual_clip: Annotated[Number, Field(gt=1.0, le=1e9)] | None = 3.0
    """Bound on the ratio where the advantage is negative (arXiv 1912.09729, equation 5); null is
    off."""

    def __call__(self, tokens: Tokens) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """r = exp(log_prob - old), the log-ratio clamped to +-20;
        max(-A r, -A clip(r, 1 - low, 1 + high)), and where A < 0 at most -A c.

        Metrics: pg_clipfrac, pg_clipfrac_lower, ppo_kl.
        """
        log_ratio = tokens.log_ratio
        losses, is_clipped = tokens.clipped(log_ratio.exp(), self.clip_low, self.clip_high)
        metrics = {
            "pg_clipfrac": masked_sum(is_clipped, tokens.mask),
            "ppo_kl": masked_sum(-log_ratio, tokens.mask),
            "pg_clipfrac_lower": losses.new_zeros(()),
        }
        if self.dual_clip is not None:
            bound, negative = -tokens.advantages * self.dual_clip, tokens.advantages < 0
            cut = (negative & (losses > bound)).to(losses)
            metrics["pg_clipfrac_lower"] = masked_sum(cut, tokens.mask)
            losses = torch.where(negative, torch.minimum(losses, bound), losses)
        return losses, {name: value.detach() for name, value in metrics.items()}


class Cispo(PolicyLoss):
    """REINFORCE, weighed by the clipped ratio; every token keeps a gradient (arXiv 2506.13585,
    equation 4)."""

    name: Literal["cispo"] = "cispo"
    clip_low: Fraction = 1.0
    """How far below 1 the weight is clipped; 1 does not, as the paper."""
    clip_high: NonNegativeFinite = 0.28
    """How far above 1 it is clipped."""

    def __call__(self, tokens: Tokens) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """-w A log_prob, w = clip(r, 1 - low, 1 + high) without gradient; the log-ratio is clamped
        to +-20.

        Metrics: pg_clipfrac, ppo_kl.
        """
        log_ratio = tokens.log_ratio.detach()
        ratio = log_ratio.exp()
        weight = ratio.clamp(1 - self.clip_low, 1 + self.clip_high)
        return -weight * tokens.advantages * tokens.log_probs, {
            "pg_clipfrac": masked_sum((ratio != weight).to(ratio), tokens.mask),
            "ppo_kl": masked_sum(-log_ratio, tokens.mask),
        }


_Temperature = Annotated[Number, Field(gt=0.0, le=1e3)]


class Sapo(PolicyLoss):
    """The further a ratio is from 1, the less its token moves: a soft gate instead of a clip (arXiv
    2511.20347, equations 5 and 6)."""

    name: Literal["sapo"] = "sapo"
    tau_positive: _Temperature = 1.0
    """How fast the gate closes where the advantage is above 0."""
    tau_negative: _Temperature = 1.05
    """How fast it closes elsewhere."""
    aggregation: ClassVar[Mode] = "seq-mean-token-mean"

    def __call__(self, tokens: Tokens) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """-A sigmoid(tau (r - 1)) 4 / tau; the log-ratio is clamped to +-20.

        Metrics: ppo_kl.
        """
        log_ratio = tokens.log_ratio
        tau = torch.full_like(tokens.advantages, self.tau_negative)
        tau[tokens.advantages > 0] = self.tau_positive
        gate = torch.sigmoid(tau * (log_ratio.exp() - 1)) * 4 / tau
        return -tokens.advantages * gate, {"ppo_kl": masked_sum(-log_ratio.detach(), tokens.mask)}


_LEAST = 1e-12
"""Probability that another token than the sampled one has at least."""
_OF_THE_PAPER = {"tv": 0.15, "kl": 0.05}
"""The largest divergence, by its kind."""


class Dppo(PolicyLoss):
    """The ratio times the advantage; nothing for tokens that would leave the trust region, a bound
    on the divergence of policies instead of on their ratio (arXiv 2602.04879)."""

    name: Literal["dppo"] = "dppo"
    divergence: Literal["tv", "kl"] = "tv"
    """Divergence of the distributions over the sampled token and all others, which is at most that
    of the policies: total variation, or KL of the new policy from the old one."""
    threshold: Annotated[PositiveFinite | None, chosen_by("divergence")] = None
    """Largest divergence; null takes the paper's, 0.15 for tv and 0.05 for kl."""
    max_ratio: PositiveFinite = 20.0
    """Largest ratio of new to old probability that a gradient is multiplied with; small ones bias
    it (section 5.4)."""

    def __call__(self, tokens: Tokens) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """-M A min(r, max_ratio) log_prob, with r without gradient (equation 11); M = 0 where the
        divergence is above the threshold and the advantage pushes further: A > 0 and r > 1, or
        A < 0 and r < 1 (equation 12). The log-ratio is clamped to +-20.

        Metrics: pg_clipfrac (tokens left out), pg_clipfrac_lower (other tokens whose ratio is
        bounded), ppo_kl.
        """
        log_ratio = tokens.log_ratio.detach()
        ratio = log_ratio.exp()
        outside = (tokens.advantages * log_ratio > 0) & (self._divergence(tokens) > self._largest)
        bounded = (ratio > self.max_ratio) & ~outside
        losses = -tokens.advantages * ratio.clamp(max=self.max_ratio) * tokens.log_probs
        return torch.where(outside, 0, losses), {
            "pg_clipfrac": masked_sum(outside.to(ratio), tokens.mask),
            "pg_clipfrac_lower": masked_sum(bounded.to(ratio), tokens.mask),
            "ppo_kl": masked_sum(-log_ratio, tokens.mask),
        }

    @property
    def _largest(self) -> float:
        return _OF_THE_PAPER[self.divergence] if self.threshold is None else self.threshold

    def _divergence(self, tokens: Tokens) -> torch.Tensor:
        """(B, T), equations 13 and 14."""
        old, new = tokens.old_log_probs, tokens.log_probs.detach()
        if self.divergence == "tv":
            return (old.exp() - new.exp()).abs()
        rest, new_rest = (-torch.expm1(p).clamp(max=-_LEAST) for p in (old, new))
        return old.exp() * (old - new) + rest * (rest.log() - new_rest.log())


class Dro(PolicyLoss):
    """The plain policy gradient, and a penalty on the square of the log-ratio (arXiv
    2405.19107)."""

    name: Literal["dro"] = "dro"
    beta: PositiveFinite
    """Weight of the penalty; the larger, the closer the policy stays to that before the step."""

    def __call__(self, tokens: Tokens) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """-A log_prob + beta / 2 (log_prob - old)^2, with advantages in the place of the paper's
        reward less its value. The log-ratio is not clamped: a token far away is drawn back too.

        Metrics: ppo_kl.
        """
        log_ratio = tokens.log_probs - tokens.old_log_probs
        losses = -tokens.advantages * tokens.log_probs + 0.5 * self.beta * log_ratio.square()
        return losses, {"ppo_kl": masked_sum(-log_ratio.detach(), tokens.mask)}


class Gpg(PolicyLoss):
    """The plain policy gradient, with no ratio and no clip (GPG, arXiv 2504.02546; REINFORCE)."""

    name: Literal["gpg"] = "gpg"

    def __call__(self, tokens: Tokens) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """-A log_prob."""
        return -tokens.advantages * tokens.log_probs, {}
