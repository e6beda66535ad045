"""The KL penalty on the reward."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from verl_hpc.algorithms.kl import Estimator, KlController, kl_penalty
from verl_hpc.step.batch import MASK, OLD_LOG_PROBS, REF_LOG_PROBS, Columns, Samples
from verl_hpc.step.operator import Metrics, operator
from verl_hpc.step.placement import Placement


@dataclass(frozen=True)
class KlSettings:
    """How KL is estimated, and its coefficient."""

    estimator: Estimator
    controller: KlController
    """Holds the coefficient, which changes every step."""


@dataclass(frozen=True)
class Penalty:
    """The KL penalty taken off the rewards of a step."""

    per_token: list[torch.Tensor]
    """Penalty per token, beta times KL, of this rank's samples."""
    per_sample: torch.Tensor
    """Penalty of every sample, (number of samples,) float64, on every rank."""


@operator("penalty", changes_state=True)
def kl_in_reward(
    place: Placement,
    settings: KlSettings,
    samples: Samples,
    sequences: Columns,
    old: Columns,
    reference: Columns,
) -> tuple[Penalty, Metrics]:
    """Compute the KL to the reference policy as a penalty on the reward, and update its controller.

    As in verl, the controller gets the mean over samples of a response's mean KL.
    """
    kl = [
        kl_penalty(o, r, settings.estimator) * mask
        for o, r, mask in zip(
            old[OLD_LOG_PROBS], reference[REF_LOG_PROBS], sequences[MASK], strict=True
        )
    ]
    sums = torch.zeros(2, len(samples), dtype=torch.float64, device=place.device)
    for position, row, mask in zip(old.positions, kl, sequences[MASK], strict=True):
        sums[0, position] = row.double().sum()
        sums[1, position] = mask.sum()
    totals, lengths = place.reduce(sums).cpu()
    mean = float((totals / lengths.clamp(min=1)).mean())
    controller = settings.controller
    beta = controller.coefficient
    controller.update(mean, len(samples))
    metrics = {"actor/reward_kl_penalty": mean, "actor/reward_kl_penalty_coeff": beta}
    return Penalty([beta * row for row in kl], beta * totals), metrics
