"""RLOO (arXiv 2402.14740): each response against the mean of the others to its prompt.

recipe: examples/rloo.py:rloo
"""

import torch

from verl_hpc.trainer.batch import ADVANTAGES, MASK, Columns, Samples
from verl_hpc.trainer.context import RunContext
from verl_hpc.trainer.operators.advantages import reward_metrics, rewards_of
from verl_hpc.trainer.operators.kl import Penalty
from verl_hpc.trainer.operators.score import Scores
from verl_hpc.trainer.operators.update import update_actor
from verl_hpc.trainer.placement import Placement
from verl_hpc.trainer.recipe import Metrics, Recipe, operator
from verl_hpc.trainer.recipes.grpo import scored_responses


def leave_one_out(rewards: torch.Tensor, groups: torch.Tensor) -> torch.Tensor:
    """r n / (n - 1) - mean n / (n - 1), (N,); the only response to a prompt keeps its reward."""
    count = torch.bincount(groups)[groups]
    total = rewards.new_zeros(int(groups.max()) + 1).index_add(0, groups, rewards)[groups]
    return rewards - (total - rewards) / (count - 1).clamp(min=1)


@operator("advantages")
def rloo_advantages(
    place: Placement,
    samples: Samples,
    sequences: Columns,
    scores: Scores,
    penalty: Penalty | None = None,
) -> tuple[Columns, Metrics]:
    rewards = rewards_of(scores, penalty)
    advantages = leave_one_out(rewards, torch.tensor([sample.group for sample in samples]))
    rows = [
        torch.full_like(mask, float(advantages[i]), dtype=torch.float32)
        for i, mask in zip(sequences.positions, sequences[MASK], strict=True)
    ]
    return Columns(sequences.positions, {ADVANTAGES: rows}), reward_metrics(rewards)


def rloo(run: RunContext) -> Recipe:
    recipe = scored_responses("rloo", run)
    recipe.operator(rloo_advantages, place="actor", name="advantages")
    return recipe.operator(update_actor, roles=["actor"], settings=run.settings.policy)
