"""Algorithms whose roles are on ranks of their own, in layouts of their own, compute what they do
where all share their ranks."""

import pytest

from tests.mpi.recipe_runs import BATCH, ROLLOUT, assert_same, run, write_reward

pytestmark = pytest.mark.world(4)

ALIKE = """
def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    if int(ground_truth) % 3:
        return 1.0
    return (sum(map(ord, solution_str)) % 5) / 4
"""
"""A reward that gives many prompts responses of equal scores."""


def greedy_answers_are_scored_apart(row):
    scores = row["critic/score/mean"]
    return 0 < scores < 1 and row["greedy/critic/score/mean"] != scores


def it_has_learned_before_it_is_asked(row):
    return row["prm/loss"] > 0 and row["prm/reward"] != 0.0


def prompts_are_asked_for_again(row):
    return row["batch/prompts_asked"] > 6 and row["batch/rounds"] > 1


# (settings of both runs, of the one apart, metrics that are the same, what holds in every row)
CASES = {
    "remax": (
        {"advantage": {"name": "remax"}, "kl": {"placement": "reward", "coefficient": 0.1}},
        {"placement": {"actor": "0-1", "rollout": 0, "reference": 2, "reward": 3}},
        ("actor/", "critic/", "greedy/", "response"),
        greedy_answers_are_scored_apart,
    ),
    # Not prm/accuracy: before the first optimizer step it is that of rounding errors.
    "prime": (
        {"advantage": {"name": "prime"}, "prm": {"beta": 1.0}},
        {
            "roles": {"prm": {"parallel": {"tensor_parallel": 2}}},
            "placement": {"actor": "0-1", "rollout": 0, "prm": "2-3"},
        },
        ("actor/", "critic/", "prm/loss", "prm/grad_norm", "prm/reward"),
        it_has_learned_before_it_is_asked,
    ),
    "refill": (
        {"drop_equal_groups": True},
        {"placement": {"train": "0-2", "rollout": 3}},
        ("actor/", "critic/", "batch/", "response"),
        prompts_are_asked_for_again,
    ),
    "optimal-token-baseline": (
        {"advantage": {"name": "optimal_token_baseline"}},
        {"placement": {"train": 0, "rollout": 0, "reward": "1-3"}},
        ("actor/", "critic/"),
        lambda row: row["actor/grad_norm"] > 1e-3,
    ),
}
TOGETHER = {"optimal-token-baseline": {"parallel": {"tensor_parallel": 2}}}


@pytest.mark.parametrize("name", CASES)
def test_placed_apart_it_computes_the_same(here, tiny_model, shared_directory, name):
    algorithm, apart, metrics, holds = CASES[name]
    settings = {"recipe": "rl", "algorithm": algorithm}
    settings["reward"] = {"function": write_reward(here, shared_directory)}
    if name == "refill":
        if here.world.rank == 0:
            (shared_directory / "alike.py").write_text(ALIKE)
        here.control.barrier()
        settings["reward"] = {"function": f"{shared_directory}/alike.py:compute_score"}
        settings |= {"batch": BATCH | {"refill_rounds": 3}, "rollout": ROLLOUT}
    together = {"placement": {"rollout": 0}} | TOGETHER.get(name, {})
    one, other = (
        run(here, f"{name}-{way}", tiny_model(), shared_directory, **settings, **placed)
        for way, placed in (("together", together), ("apart", apart))
    )
    assert_same(other, one, metrics)
    assert all(map(holds, one))
