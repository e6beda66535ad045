"""The plain policy gradient (GPG, arXiv 2504.02546; REINFORCE)."""

from __future__ import annotations

from typing import Literal

from verl_hpc.algorithms.lazy import torch
from verl_hpc.algorithms.loss import PolicyLoss, Tokens


class Gpg(PolicyLoss):
    """No ratio and no clip."""

    name: Literal["gpg"] = "gpg"

    def __call__(self, tokens: Tokens) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """-A log_prob."""
        return -tokens.advantages * tokens.log_probs, {}
