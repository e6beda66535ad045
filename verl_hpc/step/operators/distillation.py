"""Distillation: grade responses with a teacher, and learn from its log-probs."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from verl_hpc.algorithms.distillation import forward_kl
from verl_hpc.config.algorithm import DistillationConfig, ForwardKl
from verl_hpc.config.run import RunConfig
from verl_hpc.engines.protocol import OutputOptions, Sums
from verl_hpc.step.batch import (
    ADVANTAGES,
    EXPERTS,
    IMAGES,
    MASK,
    OLD_LOG_PROBS,
    TEACHER_LOG_PROBS,
    TEACHER_TOP_LOG_PROBS,
    TEACHER_TOP_TOKENS,
    TOKENS,
    Columns,
    Samples,
)
from verl_hpc.step.operator import Metrics, operator
from verl_hpc.step.operators.infer import response_parts, sequence_parts
from verl_hpc.step.operators.optimise import MiniBatch, optimise
from verl_hpc.step.operators.update import PolicySettings, actor_loss
from verl_hpc.step.placement import Placement
from verl_hpc.step.role import Role


@dataclass(frozen=True)
class StudentSettings:
    """The policy's loss, and what is added to it."""

    policy: PolicySettings
    objective: ForwardKl


@operator("graded")
def grade(
    place: Placement, teacher: Role, config: RunConfig, samples: Samples, sequences: Columns
) -> tuple[Columns, Metrics]:
    """Compute the teacher's log-probs of the responses, and of its likeliest tokens, as many as the
    forward KL has."""
    top_k = config.distillation.top_k if isinstance(config.distillation, ForwardKl) else 0
    wanted = OutputOptions(top_k=top_k, images=sequences.values.get(IMAGES))
    outputs = teacher.engine.infer(sequences[TOKENS], config.rollout.temperature, wanted)

    def column(output: str) -> list[torch.Tensor]:
        return response_parts(samples, sequences.positions, outputs, output)

    columns = {TEACHER_LOG_PROBS: column("log_probs")}
    widths = {}
    if top_k:
        tokens = column("top_tokens")
        columns[TEACHER_TOP_TOKENS] = [row.int() for row in tokens]
        columns[TEACHER_TOP_LOG_PROBS] = column("top_log_probs")
        widths = dict.fromkeys((TEACHER_TOP_TOKENS, TEACHER_TOP_LOG_PROBS), top_k)
    return Columns(sequences.positions, columns, widths), {}


@operator("advantages")
def follow(
    place: Placement,
    settings: DistillationConfig,
    sequences: Columns,
    old: Columns,
    graded: Columns,
    earned: Columns | None = None,
    trained: Columns | None = None,
) -> tuple[Columns, Metrics]:
    """Compute token advantages: with reverse_kl the teacher's log-prob minus the policy's, plus the
    weighted task advantages if there are any.

    The metric distillation/reverse_kl is the mean of log p_policy - log p_teacher over unmasked
    tokens.
    """
    rows, sums = [], torch.zeros(2, dtype=torch.float64, device=place.device)
    bound = math.inf if settings.clamp is None else settings.clamp
    for mine, theirs, mask in zip(
        old[OLD_LOG_PROBS], graded[TEACHER_LOG_PROBS], (trained or sequences)[MASK], strict=True
    ):
        lead = (theirs - mine) * mask
        sums += torch.stack([lead.double().sum(), mask.double().sum()])
        follows = settings.name == "reverse_kl"
        rows.append(lead.clamp(-bound, bound) if follows else torch.zeros_like(lead))
    if earned is not None:
        more = [settings.task_reward_weight * row for row in earned[ADVANTAGES]]
        rows = [row + share for row, share in zip(rows, more, strict=True)]
    total, count = place.reduce(sums).tolist()
    metrics = {"distillation/reverse_kl": -total / max(count, 1.0)}
    return Columns(sequences.positions, {ADVANTAGES: rows}), metrics


@operator(changes_state=True)
def update_student(
    place: Placement,
    actor: Role,
    settings: StudentSettings,
    samples: Samples,
    sequences: Columns,
    old: Columns,
    advantages: Columns,
    graded: Columns,
    trained: Columns | None = None,
    selected: Columns | None = None,
) -> tuple[tuple[()], Metrics]:
    """Take optimizer steps on the policy's loss plus the forward KL from the teacher.

    Raises:
        TrainingError: a loss or gradient is not finite.
    """
    # The policy's loss without a KL to a reference; the teacher's KL is added to it.
    objective, chosen = settings.objective, settings.policy
    policy = actor_loss(chosen, old, advantages, None, trained, selected)
    most = math.inf if objective.clamp is None else objective.clamp
    least = -math.inf if objective.min_log_prob is None else objective.min_log_prob

    def loss(batch: MiniBatch) -> tuple[torch.Tensor, Sums]:
        total, metrics = policy(batch)
        student, mask = batch.responses("candidate_log_probs")
        teacher = batch.column(graded, TEACHER_TOP_LOG_PROBS)
        losses = forward_kl(teacher, student, objective.rest, least)
        kl = batch.aggregation(losses.clamp(max=most), mask)
        return total + kl, {**metrics, "forward_kl": kl.detach()}

    tokens = [row.long() for row in graded[TEACHER_TOP_TOKENS]]
    metrics = optimise(
        place,
        actor,
        chosen.steps,
        samples,
        sequences,
        loss,
        wanted=OutputOptions(
            candidates=sequence_parts(samples, sequences, tokens),
            experts=sequences.values.get(EXPERTS),
        ),
        masks=selected or trained,
    )
    return (), metrics
