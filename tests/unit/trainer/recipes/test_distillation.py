"""On-policy distillation as a whole recipe."""

import pytest

from tests.unit.trainer.runs import length_is_worth_nothing, loop, recipe_of, small_run
from verl_hpc.errors import ConfigError

TEACHER = {"actor": {}, "teacher": {"path": "models/teacher"}}
OBJECTIVES = {
    n: {"name": n} | more for n, more in (("reverse_kl", {}), ("forward_kl", {"top_k": 3}))
}


def run_of(tmp_path, name, weight=None, **changes):
    objective = OBJECTIVES[name] | ({} if weight is None else {"task_reward_weight": weight})
    settings = {
        "recipe": "distillation", "distillation": objective, "roles": TEACHER, "steps": 12,
        "batch__size": 6, "rollout__num_samples": 4, "optimizer__lr": 1e-1, "held_out": None,
    }  # fmt: skip
    return small_run(tmp_path, **settings | changes)


def of_weights(tmp_path, name, **changes):
    """Metrics of one step without the task's reward, and with it and further changes."""
    lines = []
    for weight, more in ((0.0, {}), (1.0, changes)):
        (tmp_path / str(weight)).mkdir()
        lines += loop(run_of(tmp_path / str(weight), name, weight, steps=1, **more))[1]
    return lines


@pytest.mark.parametrize("name", OBJECTIVES)
def test_the_policy_comes_nearer_to_its_teacher(tmp_path, name):
    _, lines = loop(run_of(tmp_path, name))
    kl = [line["distillation/reverse_kl"] for line in lines]
    assert sum(kl[-3:]) < 0.5 * sum(kl[:3])
    assert "critic/score/mean" not in lines[0]
    assert ("actor/forward_kl" in lines[0]) is (name == "forward_kl")
    if name == "forward_kl":
        assert lines[-1]["actor/forward_kl"] < 0.5 * lines[0]["actor/forward_kl"]


@pytest.mark.parametrize("name", OBJECTIVES)
def test_the_task_has_a_weight_beside_the_teacher(tmp_path, name):
    alone, both = of_weights(tmp_path, name)
    assert "critic/score/mean" in both and "critic/score/mean" not in alone
    assert both["distillation/reverse_kl"] == alone["distillation/reverse_kl"]
    for metric in ("actor/pg_loss", "actor/grad_norm"):
        assert both[metric] != pytest.approx(alone[metric], rel=1e-2)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_a_penalty_on_long_responses_is_part_of_the_task(tmp_path, name):
    """It takes away what the reward gives for length, so that the teacher alone is followed."""
    alone, both = of_weights(tmp_path, name, **length_is_worth_nothing(tmp_path))
    assert both["reward/overlong_penalty"] < 0 < both["critic/score/mean"]
    for metric in ("actor/pg_loss", "actor/grad_norm"):
        assert both[metric] == pytest.approx(alone[metric], rel=1e-9, abs=1e-12)


def test_a_model_may_score_the_responses(tmp_path):
    roles = TEACHER | {"reward": {"path": "models/judge"}}
    _, lines = loop(run_of(tmp_path, "reverse_kl", 1.0, roles=roles, steps=2))
    assert all("critic/score/mean" in line for line in lines)


OWN = """
from verl_hpc.algorithms.advantage import Advantage

class Greedy(Advantage):
    needs = frozenset({"greedy"})

class Compared(Advantage):
    compares = True
"""


UNFIT_ADVANTAGES = [
    ("Greedy", {}, "own.py:Greedy: needs greedy, which recipe: distillation has not; .* grpo"),
    ("Compared", {"rollout__num_samples": 1}, "set rollout.num_samples to at least 2"),
]


@pytest.mark.parametrize(("name", "changes", "words"), UNFIT_ADVANTAGES)
def test_an_advantage_of_the_users_needs_what_is_there(tmp_path, name, changes, words):
    (tmp_path / "own.py").write_text(OWN)
    advantage = {"name": f"{tmp_path}/own.py:{name}"}
    run = run_of(tmp_path, "reverse_kl", 1.0, algorithm__advantage=advantage, **changes)
    with pytest.raises(ConfigError, match=words):
        recipe_of(run)
