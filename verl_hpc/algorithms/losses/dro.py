"""DRO: a squared log-ratio instead of a clip (arXiv 2405.19107)."""

from __future__ import annotations

from typing import Literal

from verl_hpc.algorithms.lazy import torch
from verl_hpc.algorithms.loss import PolicyLoss, Tokens
from verl_hpc.algorithms.masked import masked_sum
from verl_hpc.section import PositiveFinite


class Dro(PolicyLoss):
    """The plain policy gradient, and a penalty on the square of the log-ratio."""

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
