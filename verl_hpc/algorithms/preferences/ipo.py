"""IPO (arXiv 2310.12036, equation 17)."""

from __future__ import annotations

from typing import Literal

from verl_hpc.algorithms.lazy import torch
from verl_hpc.algorithms.preference import Answers, PreferenceLoss


class Ipo(PreferenceLoss):
    """A margin to reach and not to pass, by which pairs that are always right do not overfit."""

    name: Literal["ipo"] = "ipo"

    def __call__(self, chosen: Answers, rejected: Answers) -> torch.Tensor:
        """(h - 1 / (2 beta))^2, h the difference of the answers' log-ratios to the reference, each
        divided by the answer's length as TRL does; beta is the paper's tau."""
        better, worse = (a.log_ratios / a.lengths.clamp(min=1) for a in (chosen, rejected))
        return (better - worse - 1 / (2 * self.beta)).square()
