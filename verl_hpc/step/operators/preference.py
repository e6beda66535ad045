"""Train and evaluate a reward model on pairs. Samples are pairs of neighbours: the chosen answer,
then the rejected one."""

from __future__ import annotations

import torch

from verl_hpc.algorithms.preference import bradley_terry
from verl_hpc.engines.protocol import Sums
from verl_hpc.step.batch import Columns, Samples, StepRows
from verl_hpc.step.metrics import pair_metrics
from verl_hpc.step.operator import Metrics, operator
from verl_hpc.step.operators.infer import scores_of
from verl_hpc.step.operators.optimise import MiniBatch, OptimiseSettings, optimise
from verl_hpc.step.placement import Placement
from verl_hpc.step.role import Role


@operator(changes_state=True)
def update_reward(
    place: Placement, reward: Role, settings: OptimiseSettings, samples: Samples, sequences: Columns
) -> tuple[tuple[()], Metrics]:
    """Take optimizer steps on a reward model's mean Bradley-Terry loss over pairs.

    Raises:
        TrainingError: a loss or gradient is not finite.
    """

    def loss(batch: MiniBatch) -> tuple[torch.Tensor, Sums]:
        num_pairs = batch.aggregation.num_sequences // 2
        scores = [o.scores for o in batch.outputs if o.scores is not None]
        assert len(scores) == len(batch.rows), "the engine has no scores"
        chosen, rejected = torch.cat(scores).view(-1, 2).unbind(1)
        margins = (chosen - rejected).detach()
        metrics = {"accuracy": (margins > 0).sum(), "margin": margins.sum()}
        shares = {name: value.double() / num_pairs for name, value in metrics.items()}
        return bradley_terry(chosen, rejected).sum() / num_pairs, shares

    return (), optimise(place, reward, settings, samples, sequences, loss, together=2)


@operator()
def compare_pairs(
    place: Placement, reward: Role, rows: StepRows, samples: Samples, sequences: Columns
) -> tuple[tuple[()], Metrics]:
    """Measure how often, and by how much, a reward model prefers the chosen answer of held-out
    pairs.

    A pair whose prompt rollout.overlong_prompt drops counts as wrong.
    """
    scores = torch.tensor(scores_of(place, reward, sequences, len(samples)), dtype=torch.float64)
    margins = scores[::2] - scores[1::2]
    right, margin = float((margins > 0).sum()), float(margins.mean())
    return (), pair_metrics(right, margin, len(margins), len(rows.rows))
