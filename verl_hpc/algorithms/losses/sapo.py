"""SAPO: a soft gate on the ratio instead of a clip (arXiv 2511.20347, equations 5 and 6)."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from verl_hpc.algorithms.aggregation import Mode
from verl_hpc.algorithms.lazy import torch
from verl_hpc.algorithms.loss import PolicyLoss, Tokens
from verl_hpc.algorithms.masked import masked_sum
from verl_hpc.section import Number

_Temperature = Annotated[Number, Field(gt=0.0, le=1e3)]


class Sapo(PolicyLoss):
    """The further a ratio is from 1, the less its token moves."""

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
