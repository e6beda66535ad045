"""PPO with a critic: advantages by GAE from learned values."""

from __future__ import annotations

from functools import partial

from verl_hpc.flow import DataFlow
from verl_hpc.trainer.operators.advantages import token_advantages
from verl_hpc.trainer.operators.infer import values
from verl_hpc.trainer.operators.update import update_critic
from verl_hpc.trainer.recipes.grpo import grpo
from verl_hpc.trainer.workers import TRAIN, Workers


def ppo(workers: Workers) -> DataFlow:
    """The flow of one PPO step (arXiv 1707.06347): GRPO's, with a critic in place of groups."""
    in_reward = workers.config.algorithm.kl.placement == "reward"
    flow = grpo(workers).without("advantages")
    flow.name = "ppo"
    flow.add(
        "values",
        partial(values, workers),
        inputs=("samples", "sequences"),
        placement=TRAIN,
    )
    flow.add(
        "advantages",
        partial(token_advantages, workers),
        inputs=("scores", "values", *(("penalty",) if in_reward else ())),
        placement=TRAIN,
    )
    flow.add(
        "update_critic",
        partial(update_critic, workers),
        inputs=("samples", "sequences", "values", "advantages"),
        outputs=("critic_metrics",),
        placement=TRAIN,
        changes_state=True,
    )
    return flow


def critic_warmup(workers: Workers) -> DataFlow:
    """PPO's flow without the actor's update: the critic's first steps."""
    return ppo(workers).without("update_actor")
