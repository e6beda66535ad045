"""NCA for pairs (arXiv 2402.05369), which also learns absolute likelihoods."""

from __future__ import annotations

from typing import Literal

from verl_hpc.algorithms.lazy import torch
from verl_hpc.algorithms.preference import Answers, PreferenceLoss


class Nca(PreferenceLoss):
    """Noise-contrastive: keeps the chosen answer's likelihood from falling with the rejected's."""

    name: Literal["nca"] = "nca"

    def __call__(self, chosen: Answers, rejected: Answers) -> torch.Tensor:
        """-log sigmoid(r_c) - log sigmoid(-r_c) / 2 - log sigmoid(-r_r) / 2, r beta times an
        answer's log-ratio to the reference; TRL's nca_pair."""
        better, worse = self.beta * chosen.log_ratios, self.beta * rejected.log_ratios
        log = torch.nn.functional.logsigmoid
        return -log(better) - 0.5 * log(-better) - 0.5 * log(-worse)
