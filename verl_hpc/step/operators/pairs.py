"""Train a policy on pairs of answers. Samples are pairs of neighbours: the chosen answer, then the
rejected one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from verl_hpc.algorithms.preference import Answers, PreferenceLoss, answers_of
from verl_hpc.engines.protocol import Sums
from verl_hpc.errors import TrainingError
from verl_hpc.step.batch import MASK, REF_LOG_PROBS, Columns, Samples, StepRows, pad_rows
from verl_hpc.step.metrics import pair_metrics
from verl_hpc.step.operator import Metrics, operator
from verl_hpc.step.operators.infer import log_probs_of
from verl_hpc.step.operators.optimise import MiniBatch, OptimiseSettings, optimise
from verl_hpc.step.placement import Placement
from verl_hpc.step.role import Role

LOSS = "preference/loss"
Rewards = Callable[[Answers], torch.Tensor]
"""Function from B answers to their implicit rewards under a policy, (B,)."""


@dataclass(frozen=True)
class PairSettings:
    """The loss of pairs, and its optimizer steps."""

    loss: PreferenceLoss
    steps: OptimiseSettings


@operator(changes_state=True)
def update_on_pairs(
    place: Placement,
    actor: Role,
    settings: PairSettings,
    samples: Samples,
    sequences: Columns,
    reference: Columns | None = None,
) -> tuple[tuple[()], Metrics]:
    """Take optimizer steps on the mean loss of pairs, preference/loss.

    Metrics are TRL's: rewards/chosen, rewards/rejected, rewards/margins, rewards/accuracies (the
    share of pairs whose chosen answer has the higher reward), logps/chosen, logps/rejected.

    Raises:
        TrainingError: a loss or gradient is not finite, or the user's loss does not return one
            number per pair.
    """

    def loss(batch: MiniBatch) -> tuple[torch.Tensor, Sums]:
        answers = read_answers(batch, reference)
        chosen, rejected = answers.pairs()
        losses = _losses(settings.loss, chosen, rejected)
        sums = _sums(settings.loss, chosen, rejected)
        if settings.loss.sft_weight:
            losses = losses - settings.loss.sft_weight * chosen.mean_log_probs
            sums["preference/nll_loss"] = -chosen.mean_log_probs.sum()
        num_pairs = batch.aggregation.num_sequences // 2
        metrics = {name: value.detach().double() / num_pairs for name, value in sums.items()}
        return losses.sum() / num_pairs, metrics

    steps = settings.steps
    metrics = optimise(place, actor, steps, samples, sequences, loss, together=2, loss_name=LOSS)
    return (), metrics


def read_answers(batch: MiniBatch, reference: Columns | None) -> Answers:
    """Read a micro-batch's answers, with the reference's log-probs if given."""
    log_probs, mask = batch.responses("log_probs")
    before = None if reference is None else batch.column(reference, REF_LOG_PROBS)
    return answers_of(log_probs, mask, before)


def _losses(loss: PreferenceLoss, chosen: Answers, rejected: Answers) -> torch.Tensor:
    losses = loss(chosen, rejected)
    if losses.shape != chosen.log_probs.shape:
        raise TrainingError(
            f"algorithm.preference.name = {loss.name}: gives losses of shape "
            f"{tuple(losses.shape)}; expected {tuple(chosen.log_probs.shape)}, one a pair"
        )
    return losses


def _sums(loss: PreferenceLoss, chosen: Answers, rejected: Answers) -> dict[str, torch.Tensor]:
    better, worse = loss.rewards(chosen), loss.rewards(rejected)
    return {
        "rewards/chosen": better.sum(),
        "rewards/rejected": worse.sum(),
        "rewards/margins": (better - worse).sum(),
        "rewards/accuracies": (better > worse).sum(),
        "logps/chosen": chosen.log_probs.sum(),
        "logps/rejected": rejected.log_probs.sum(),
    }


@operator()
def compare_answers(
    place: Placement,
    actor: Role,
    settings: Rewards,
    rows: StepRows,
    samples: Samples,
    sequences: Columns,
    reference: Columns | None = None,
) -> tuple[tuple[()], Metrics]:
    """Measure how often, and by how much, the policy's implicit reward prefers the chosen answer of
    held-out pairs.

    A pair whose prompt rollout.overlong_prompt drops counts as wrong, and so does a tie: if the
    policy is its own reference all pairs tie, up to rounding.
    """
    sums = torch.zeros(3, dtype=torch.float64, device=place.device)
    policy = log_probs_of(actor, 1.0, samples, sequences, "log_probs")["log_probs"]
    if policy:
        before = None if reference is None else pad_rows(reference[REF_LOG_PROBS])
        answers = answers_of(pad_rows(policy), pad_rows(sequences[MASK]), before)
        chosen, rejected = answers.pairs()
        margins = settings(chosen) - settings(rejected)
        sums = torch.stack([(margins > 0).sum().double(), margins.sum(), sums[0] + len(margins)])
    right, margin, count = place.reduce(sums).tolist()
    return (), pair_metrics(right, margin / count, count, len(rows.rows))
