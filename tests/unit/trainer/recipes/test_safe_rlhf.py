"""Safe RLHF, a recipe of examples/: how reward and cost are weighed, and what a resume keeps."""

from pathlib import Path

import pytest
import torch

from tests.unit.step.operators.batches import MASKS, PLACE, column, per_token
from tests.unit.trainer.runs import loop, small_run
from verl_hpc.rewards.user_code import load_function
from verl_hpc.step.batch import Scores
from verl_hpc.step.number import Number
from verl_hpc.step.operators.kl import Penalty

FILE = Path(__file__).parents[4] / "examples/safe_rlhf.py"
LIMIT, RATE = 0.125, 0.1


def example(name):
    return load_function(f"{FILE}:{name}")


def test_it_is_a_file_of_at_most_a_hundred_lines():
    assert len(FILE.read_text().splitlines()) <= 100


@pytest.mark.parametrize(
    ("costs", "after"), [([0.5, 0.25, 0.0], 0.5125), ([0.0, 0.0, 0.0], 0.4875)]
)
def test_advantages_are_weighed_and_the_multiplier_follows_the_cost(costs, after):
    multiplier = Number(0.5, PLACE)
    earned, guessed, paid, feared = (per_token(seed) for seed in range(4))
    rewards = column(returns=earned, advantages=per_token(5))
    charges = column(returns=paid, advantages=per_token(6))
    known = column(values=guessed), column(values=feared), rewards, charges
    weighed, metrics = example("weigh")(PLACE, multiplier, Scores(costs), *known)
    for i, row in enumerate(weighed["advantages"]):
        expected = ((earned[i] - guessed[i]) - 0.5 * (paid[i] - feared[i])) / 1.5
        torch.testing.assert_close(row, expected)
    assert multiplier.value == pytest.approx(after)
    mean = pytest.approx(sum(costs) / 3)
    assert metrics == {"safety/cost": mean, "safety/limit": LIMIT, "safety/multiplier": 0.5}


def test_the_multiplier_is_never_negative():
    multiplier = Number(0.01, PLACE)
    columns = [column(values=per_token(0), returns=per_token(1)) for _ in range(4)]
    example("weigh")(PLACE, multiplier, Scores([-2.0]), *columns)
    assert multiplier.value == 0.0


def test_half_of_the_penalty_is_a_cost():
    penalty = Penalty([torch.ones(len(m)) for m in MASKS], torch.tensor([5.0, 2.0, 4.0]))
    (less, more), _ = example("halve")(PLACE, penalty)
    assert less.per_sample.tolist() == [2.5, 1.0, 2.0]
    assert more.per_sample.tolist() == [-2.5, -1.0, -2.0]
    assert less.per_token[0].tolist() == [0.5] * 5 and more.per_token[0].tolist() == [-0.5] * 5


def safe_run(directory, steps):
    names = ("actor", "reference", "reward", "cost", "critic", "cost_critic")
    changes = {"held_out": None, "checkpoint": {"every": 2, "keep": 9}}
    changes["algorithm__kl"] = {"placement": "reward", "coefficient": 0.1}
    roles = {name: {} for name in names}
    recipe = f"{FILE}:safe_rlhf"
    return small_run(directory, recipe=recipe, steps=steps, roles=roles, **changes)


def test_a_resumed_run_goes_on_with_the_multiplier_it_had(tmp_path):
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    _, straight = loop(safe_run(tmp_path / "one", 4))
    loop(safe_run(tmp_path / "two", 2))
    run = safe_run(tmp_path / "two", 4)
    _, resumed = loop(run, resumes=True)
    multipliers = [line["safety/multiplier"] for line in straight]
    assert multipliers[0] == 2.0 and len(set(multipliers)) == 4
    assert [line["safety/multiplier"] for line in resumed] == multipliers
    assert [line["actor/loss"] for line in resumed] == [line["actor/loss"] for line in straight]
    for line in straight:
        change = RATE * (line["safety/cost"] - LIMIT)
        assert line["safety/multiplier"] + change == pytest.approx(
            multipliers[line["step"]] if line["step"] < 4 else run.numbers["lambda"].value
        )
    assert [run.roles[name].settings.trainable for name in ("cost_critic", "cost")] == [True, False]
