"""Safe RLHF (arXiv 2310.12773): as much reward as a limit on the mean cost allows.

Roles: actor, reference, reward and cost (scorers), critic and cost_critic. A Lagrange multiplier
lambda weighs the cost against the reward, and rises while the cost is above its limit:

    advantage = (A_reward - lambda A_cost) / (1 + lambda)
    lambda <- max(0, lambda + RATE (mean cost - LIMIT))

`recipe: examples/safe_rlhf.py:safe_rlhf`, see configs/run/examples/safe_rlhf.yaml.
"""

from verl_hpc.algorithms.advantages.gae import Gae
from verl_hpc.step.batch import ADVANTAGES, RETURNS, VALUES, Columns, Scores
from verl_hpc.step.number import Number
from verl_hpc.step.operator import Metrics, operator
from verl_hpc.step.operators.advantages import advantages
from verl_hpc.step.operators.infer import model_scores, values
from verl_hpc.step.operators.kl import Penalty
from verl_hpc.step.operators.update import update_actor, update_critic
from verl_hpc.step.placement import Placement
from verl_hpc.trainer.context import RunContext
from verl_hpc.trainer.recipe import Recipe
from verl_hpc.trainer.recipes.rl import scored_responses

LIMIT = 0.125  # The largest mean cost: one letter in eight.
RATE = 0.1  # How fast the multiplier rises, for each step and unit of cost.


@operator("reward_penalty", "cost_penalty")
def halve(place: Placement, penalty: Penalty) -> tuple[tuple[Penalty, Penalty], Metrics]:
    """Half of the KL penalty lowers the reward, half of it raises the cost."""
    halves = [
        Penalty([sign * row for row in penalty.per_token], sign * penalty.per_sample)
        for sign in (0.5, -0.5)
    ]
    return (halves[0], halves[1]), {}


@operator("advantages", changes_state=True)
def weigh(
    place: Placement,
    multiplier: Number,
    costs: Scores,
    values: Columns,
    cost_values: Columns,
    reward_advantages: Columns,
    cost_advantages: Columns,
) -> tuple[Columns, Metrics]:
    """The advantages of reward and cost as one, and the multiplier's next value.

    They are weighed in the units of the scores: returns minus values, not whitened.
    """
    weight, cost = multiplier.value, sum(costs.values) / len(costs.values)
    earned, paid = (
        [after - before for after, before in zip(of[RETURNS], guess[VALUES], strict=True)]
        for of, guess in ((reward_advantages, values), (cost_advantages, cost_values))
    )
    rows = [(r - weight * c) / (1 + weight) for r, c in zip(earned, paid, strict=True)]
    multiplier.value = max(0.0, weight + RATE * (cost - LIMIT))
    metrics = {"safety/cost": cost, "safety/limit": LIMIT, "safety/multiplier": weight}
    return Columns(reward_advantages.positions, {ADVANTAGES: rows}), metrics


def safe_rlhf(run: RunContext) -> Recipe:
    """The flow of one step: PPO twice up to the advantages, which then become one."""
    settings, gae = run.settings, Gae()
    recipe = scored_responses("safe_rlhf", run)
    recipe.operator(model_scores, roles=["cost"], name="cost", outputs=["costs"], prefix="cost/")
    recipe.operator(values, roles=["critic"])
    recipe.operator(values, roles=["cost_critic"], name="cost_values", outputs=["cost_values"])
    recipe.operator(halve, place="actor")
    for_cost = {"scores": "costs", "values": "cost_values", "penalty": "cost_penalty"}
    for name, inputs in {"reward": {"penalty": "reward_penalty"}, "cost": for_cost}.items():
        recipe.operator(
            advantages,
            settings=gae,
            place="actor",
            name=f"{name}_advantages",
            inputs=inputs,
            outputs=[f"{name}_advantages"],
            prefix="" if name == "reward" else "cost/",
        )
    recipe.operator(weigh, settings=run.number("lambda", 2.0, "actor"), place="actor")
    recipe.operator(update_actor, roles=["actor"], settings=settings.policy)
    recipe.operator(
        update_critic,
        roles=["critic"],
        settings=settings.value,
        inputs={"advantages": "reward_advantages"},
    )
    recipe.operator(
        update_critic,
        roles=["cost_critic"],
        settings=settings.value,
        name="update_cost_critic",
        inputs={"values": "cost_values", "advantages": "cost_advantages"},
    )
    return recipe
