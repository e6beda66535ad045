"""A token-level reward model, trained with the policy from outcomes only."""

from __future__ import annotations

import torch

from verl_hpc.algorithms.preference import answers_of
from verl_hpc.algorithms.process_reward import outcome_cross_entropy
from verl_hpc.engines.protocol import Sums
from verl_hpc.errors import TrainingError
from verl_hpc.step.batch import MASK, PROCESS_REWARDS, REF_LOG_PROBS, Columns, Samples, Scores
from verl_hpc.step.operator import Metrics, operator
from verl_hpc.step.operators.infer import log_probs_of
from verl_hpc.step.operators.optimise import MiniBatch, OptimiseSettings, optimise
from verl_hpc.step.placement import Placement
from verl_hpc.step.role import Role


@operator(changes_state=True)
def update_prm(
    place: Placement,
    prm: Role,
    settings: OptimiseSettings,
    samples: Samples,
    sequences: Columns,
    scores: Scores,
    prm_reference: Columns,
) -> tuple[tuple[()], Metrics]:
    """Take optimizer steps on the cross-entropy of outcomes, averaged over responses.

    Metrics: prm/loss, and prm/accuracy: the share of responses for which (sum of rewards > 0)
    agrees with (score > 0.5), before the update.

    Raises:
        TrainingError: on every rank: a score is not between 0 and 1. A loss or gradient is not
            finite.
    """
    _check(place, scores)
    beta = settings.config.algorithm.prm.beta

    def loss(batch: MiniBatch) -> tuple[torch.Tensor, Sums]:
        log_probs, mask = batch.responses("log_probs")
        before = batch.column(prm_reference, REF_LOG_PROBS)
        answers = answers_of(log_probs, mask, before)
        rewards = beta * answers.log_ratios
        positions = [sequences.positions[row] for row in batch.rows]
        outcomes = torch.tensor([scores.values[p] for p in positions]).to(rewards)
        counts = answers.lengths > 0
        losses = torch.where(counts, outcome_cross_entropy(rewards, outcomes), 0)
        num_responses = max(batch.aggregation.num_sequences, 1)
        right = counts & ((rewards > 0) == (outcomes > 0.5))
        return losses.sum() / num_responses, {"accuracy": right.sum().double() / num_responses}

    return (), optimise(place, prm, settings, samples, sequences, loss)


@operator("process_rewards")
def process_rewards(
    place: Placement,
    prm: Role,
    settings: OptimiseSettings,
    samples: Samples,
    sequences: Columns,
    prm_reference: Columns,
) -> tuple[Columns, Metrics]:
    """Compute beta (log pi_prm - log pi_ref) of each response token under the current model."""
    log_probs = log_probs_of(prm, 1.0, samples, sequences, PROCESS_REWARDS)[PROCESS_REWARDS]
    pairs = zip(log_probs, prm_reference[REF_LOG_PROBS], strict=True)
    beta = settings.config.algorithm.prm.beta
    token_rewards = [beta * (now - before) for now, before in pairs]
    total = torch.zeros((), dtype=torch.float64, device=place.device)
    for rewards, mask in zip(token_rewards, sequences[MASK], strict=True):
        total += torch.where(mask.bool(), rewards, 0).sum(dtype=torch.float64)
    mean = float(place.reduce(total)) / len(samples)
    return Columns(sequences.positions, {PROCESS_REWARDS: token_rewards}), {
        f"{prm.name}/reward": mean
    }


def _check(place: Placement, scores: Scores) -> None:
    wrong = [score for score in scores.values if not 0.0 <= score <= 1.0]
    if wrong:
        raise place.alike(
            TrainingError(
                f"a response has the score {wrong[0]:g}, and the process reward model learns from "
                "scores between 0 and 1; change the reward function, or choose another "
                "algorithm.advantage.name"
            )
        )
