"""APO (arXiv 2408.06266): whether both answers shall become likelier, or less likely."""

from __future__ import annotations

from typing import Literal

from verl_hpc.algorithms.lazy import torch
from verl_hpc.algorithms.preference import Answers, PreferenceLoss


class Apo(PreferenceLoss):
    """Anchored: each answer's likelihood is pushed in a direction of its own."""

    name: Literal["apo"] = "apo"
    anchor: Literal["zero", "down"] = "zero"
    """zero: the chosen answer up and the rejected one down, where chosen answers are better than
    the model's; down: both down, the rejected one further, where they are worse."""

    def __call__(self, chosen: Answers, rejected: Answers) -> torch.Tensor:
        """zero: 1 - sigmoid(r_c) + sigmoid(r_r); down: sigmoid(r_c) + 1 - sigmoid(r_c - r_r). r is
        beta times an answer's log-ratio to the reference."""
        better, worse = self.beta * chosen.log_ratios, self.beta * rejected.log_ratios
        if self.anchor == "zero":
            return torch.sigmoid(-better) + torch.sigmoid(worse)
        return torch.sigmoid(better) + torch.sigmoid(worse - better)
