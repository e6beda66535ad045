"""GRPO: sample a group of responses per prompt, and prefer those that beat their group."""

from __future__ import annotations

from functools import partial

from verl_hpc.flow import DataFlow
from verl_hpc.trainer.operators.advantages import group_advantages, penalise
from verl_hpc.trainer.operators.generate import generate
from verl_hpc.trainer.operators.infer import old_log_probs, ref_log_probs
from verl_hpc.trainer.operators.score import score
from verl_hpc.trainer.operators.update import update_actor
from verl_hpc.trainer.workers import ROLLOUT, TRAIN, Workers


def grpo(workers: Workers) -> DataFlow:
    """The flow of one GRPO step (arXiv 2402.03300)."""
    kl = workers.config.algorithm.kl.placement
    flow = DataFlow("grpo", inputs=("prompts",))
    flow.add(
        "rollout",
        partial(generate, workers),
        inputs=("prompts",),
        outputs=("samples", "generated", "sequences"),
        placement=ROLLOUT,
        shared=("samples",),
    )
    flow.add(
        "reward",
        partial(score, workers),
        inputs=("generated",),
        outputs=("scores",),
        placement=ROLLOUT,
        shared=("scores",),
    )
    flow.add(
        "old_log_probs",
        partial(old_log_probs, workers),
        inputs=("samples", "sequences"),
        outputs=("old", "mismatch"),
        placement=TRAIN,
    )
    if kl != "none":
        flow.add(
            "ref_log_probs",
            partial(ref_log_probs, workers),
            inputs=("samples", "sequences"),
            outputs=("reference",),
            placement=TRAIN,
        )
    if kl == "reward":
        flow.add(
            "kl_penalty",
            partial(penalise, workers),
            inputs=("samples", "old", "reference"),
            outputs=("penalty",),
            placement=TRAIN,
            changes_state=True,
        )
    flow.add(
        "advantages",
        partial(group_advantages, workers),
        inputs=("samples", "scores", "old", *(("penalty",) if kl == "reward" else ())),
        placement=TRAIN,
    )
    flow.add(
        "update_actor",
        partial(update_actor, workers),
        inputs=(
            *("samples", "sequences", "old", "advantages"),
            *(("reference",) if kl == "loss" else ()),
        ),
        outputs=("actor_metrics",),
        placement=TRAIN,
        changes_state=True,
    )
    return flow
