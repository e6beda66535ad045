"""Losses of actor and critic, and their optimizer steps."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from verl_hpc.algorithms.kl import kl_penalty
from verl_hpc.algorithms.loss import PolicyLoss, Tokens
from verl_hpc.algorithms.masked import masked_sum
from verl_hpc.algorithms.value_loss import clipped_value_loss
from verl_hpc.engines.protocol import OutputOptions, Sums, TokenOutputs
from verl_hpc.errors import FlowError
from verl_hpc.step.batch import (
    ADVANTAGES,
    EXPERTS,
    MASK,
    OLD_LOG_PROBS,
    REF_LOG_PROBS,
    RETURNS,
    ROLLOUT_LOG_PROBS,
    SELECTED,
    VALUES,
    WEIGHTS,
    Columns,
    Samples,
)
from verl_hpc.step.metrics import peak_of_device, utilisation
from verl_hpc.step.operator import Metrics, operator
from verl_hpc.step.operators.infer import probe
from verl_hpc.step.operators.optimise import MiniBatch, OptimiseSettings, TokenLoss, optimise
from verl_hpc.step.placement import Placement
from verl_hpc.step.role import Role


@dataclass(frozen=True)
class PolicySettings:
    """The policy's loss, and its optimizer steps."""

    loss: PolicyLoss
    steps: OptimiseSettings


@operator(changes_state=True)
def update_actor(
    place: Placement,
    actor: Role,
    settings: PolicySettings,
    samples: Samples,
    sequences: Columns,
    advantages: Columns,
    old: Columns | None = None,
    reference: Columns | None = None,
    trained: Columns | None = None,
    selected: Columns | None = None,
) -> tuple[tuple[()], Metrics]:
    """Take optimizer steps on the policy's loss.

    Without `old` a batch is one step. The ratio's denominator is then the step's own forward pass,
    or by algorithm.old_log_probs the rollout engine's log-probs; the two are compared before the
    weights change.

    Raises:
        FlowError: on every rank, if a batch without `old` is several steps.
        TrainingError: a loss or gradient is not finite; without `old` see also `old_log_probs`.
    """
    mismatch: dict[str, float] = {}
    config = settings.steps.config

    def compare(outputs: Sequence[TokenOutputs]) -> None:
        mismatch.update(probe(place, config, samples, sequences, outputs))

    # Without `old` the step's own forward pass also gives the log-probs to compare with the
    # rollout's.
    starts_here = old is None
    if starts_here:
        _check_one_step(place, settings, samples)
        if config.algorithm.old_log_probs == "rollout":
            columns = {OLD_LOG_PROBS: sequences[ROLLOUT_LOG_PROBS]}
            old = Columns(sequences.positions, columns)
    begin = time.monotonic()
    metrics = optimise(
        place,
        actor,
        settings.steps,
        samples,
        sequences,
        actor_loss(settings, old, advantages, reference, trained, selected),
        masks=selected or trained,
        wanted=OutputOptions(
            untempered=starts_here and bool(config.rollout.filters),
            experts=sequences.values.get(EXPERTS),
        ),
        seen=compare if starts_here else None,
    )
    used = utilisation(
        actor.arch,
        [sample.length for sample in samples] * settings.steps.update_epochs,
        time.monotonic() - begin,
        len(place.ranks) * peak_of_device(str(actor.dtype).removeprefix("torch.")),
    )
    return (), metrics | mismatch | used


def _check_one_step(place: Placement, settings: PolicySettings, samples: Samples) -> None:
    num_steps = len(samples.all_epochs(settings.steps.update_epochs))
    if num_steps > 1:
        raise place.alike(
            FlowError(
                f"operator update_actor takes {num_steps} optimizer steps on a batch, and nothing "
                "gives it the log-probs from before the first; put the operator old_log_probs "
                "before it"
            )
        )


def actor_loss(
    settings: PolicySettings,
    old: Columns | None,
    advantages: Columns,
    reference: Columns | None = None,
    trained: Columns | None = None,
    selected: Columns | None = None,
) -> TokenLoss:
    """Return the policy's loss: weighted by algorithm.correction, minus the entropy bonus, and with
    kl.placement: loss plus the KL to the reference. Without `old` the ratio is 1, but has a
    gradient."""
    algorithm = settings.steps.config.algorithm

    def loss(batch: MiniBatch) -> tuple[torch.Tensor, Sums]:
        log_probs, mask = batch.responses("log_probs")
        before = log_probs.detach()
        if old is not None:
            before = batch.column(old, OLD_LOG_PROBS)
        advantage = batch.column(advantages, ADVANTAGES)
        chosen = None
        if settings.loss.selects:
            assert selected is not None
            chosen = batch.column(selected, SELECTED).bool()
        # Loss of each token, corrected for the rollout's distribution, then aggregated.
        losses, sums = settings.loss(Tokens(before, log_probs, advantage, mask, chosen))
        if trained is not None and WEIGHTS in trained.values:
            weights = batch.column(trained, WEIGHTS)
            losses = settings.loss.weighted(losses, weights, mask)
        policy = batch.aggregation(losses, mask)
        metrics = {name: value.double() / batch.num_tokens for name, value in sums.items()}
        metrics["pg_loss"] = policy.detach()
        total = policy
        add_up = replace(
            batch.aggregation, mode=algorithm.penalty_aggregation or batch.aggregation.mode
        )
        if algorithm.entropy_coefficient:
            entropy, _ = batch.responses("entropy")
            total = total - algorithm.entropy_coefficient * add_up(entropy, mask)
        if algorithm.kl.placement == "loss":
            assert reference is not None
            ref = batch.column(reference, REF_LOG_PROBS)
            kl = add_up(kl_penalty(log_probs, ref, algorithm.kl.chosen_estimator), mask)
            total = total + algorithm.kl.coefficient * kl
            metrics["kl_loss"] = kl.detach()
        return total, metrics

    return loss


@operator(changes_state=True)
def update_critic(
    place: Placement,
    critic: Role,
    settings: OptimiseSettings,
    samples: Samples,
    sequences: Columns,
    values: Columns,
    advantages: Columns,
    trained: Columns | None = None,
) -> tuple[tuple[()], Metrics]:
    """Regress values on returns, clipped.

    Raises:
        TrainingError: a loss or gradient is not finite.
    """

    def loss(batch: MiniBatch) -> tuple[torch.Tensor, Sums]:
        predicted, mask = batch.responses("values")
        losses, sums = clipped_value_loss(
            predicted,
            batch.column(values, VALUES),
            batch.column(advantages, RETURNS),
            mask,
            settings.config.critic.value_clip,
        )
        value = batch.aggregation(losses, mask)
        metrics = {name: v.double() / batch.num_tokens for name, v in sums.items()}
        metrics["vf_loss"] = value.detach()
        metrics["vpred_mean"] = masked_sum(predicted.detach(), mask).double() / batch.num_tokens
        return value, metrics

    metrics = optimise(place, critic, settings, samples, sequences, loss, masks=trained)
    explained = _explained_variance(place, trained or sequences, values, advantages)
    metrics[f"{critic.name}/vf_explained_var"] = explained
    return (), metrics


@operator(changes_state=True)
def update_sft(
    place: Placement, actor: Role, settings: OptimiseSettings, samples: Samples, sequences: Columns
) -> tuple[tuple[()], Metrics]:
    """Take supervised fine-tuning steps on the cross-entropy of the answers' tokens.

    Raises:
        TrainingError: a loss or gradient is not finite.
    """

    def loss(batch: MiniBatch) -> tuple[torch.Tensor, Sums]:
        log_probs, mask = batch.responses("log_probs")
        return batch.aggregation(-log_probs, mask), {}

    return (), optimise(place, actor, settings, samples, sequences, loss, loss_name="sft/loss")


def _explained_variance(
    place: Placement, masks: Columns, values: Columns, advantages: Columns
) -> float:
    """Return 1 - var(return - value) / var(return), over all unmasked response tokens."""
    sums = torch.zeros(5, dtype=torch.float64, device=place.device)
    rows = zip(values[VALUES], advantages[RETURNS], masks[MASK], strict=True)
    for value, target, mask in rows:
        count = mask.double()
        target, error = target.double() * count, (target - value).double() * count
        sums += torch.stack(
            [error.sum(), (error**2).sum(), target.sum(), (target**2).sum(), count.sum()]
        )
    *totals, count = place.reduce(sums).tolist()
    error, error2, target, target2 = (total / max(count, 1.0) for total in totals)
    variance = target2 - target**2
    unexplained = error2 - error**2
    return 1 - unexplained / variance if variance > 0 else 0.0
