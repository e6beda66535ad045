"""PRIME in this process: a process reward model that learns from outcomes beside the policy."""

import math

import pytest
import torch

from tests.unit.config.trees import parse
from tests.unit.step.operators.batches import (
    MASKS,
    PLACE,
    PROMPTS,
    RESPONSES,
    column,
    counted,
    per_token,
    role,
    samples,
    sequences,
)
from tests.unit.trainer.runs import loop, recipe_of, small_run
from verl_hpc.config.model import OptimizerConfig
from verl_hpc.errors import ConfigError, TrainingError
from verl_hpc.step.batch import Scores
from verl_hpc.step.operators.optimise import OptimiseSettings
from verl_hpc.step.operators.process_reward import process_rewards, update_prm
from verl_hpc.testing.local_run import engine_of

REWARD = "def score(response, ground_truth):\n    return float('a' in response)\n"
PRIME = {"algorithm__advantage": {"name": "prime"}}


def prime_run(directory, **changes):
    (directory / "outcome.py").write_text(REWARD, encoding="utf-8")
    given = {
        "reward__function": f"{directory}/outcome.py:score",
        "rollout__num_samples": 4,
        "batch__size": 4,
        "optimizer__lr": 5e-2,
        "algorithm__prm": {"beta": 0.5},
        **PRIME,
    }
    return small_run(directory, **given | changes)


def test_it_learns_what_is_rewarded_and_raises_the_score(tmp_path):
    run = prime_run(tmp_path, steps=25)
    assert [*run.roles] == ["actor", "prm", "prm_reference"]
    assert run.roles["prm_reference"].settings.shares == "prm"
    assert [r.name for r in run.trained] == ["actor", "prm"]
    _, lines = loop(run)
    first, last = lines[0], lines[-5:]
    assert first["prm/loss"] == pytest.approx(math.log(2), rel=1e-6)
    mean = {name: sum(line[name] for line in last) / 5 for name in last[0]}
    assert mean["prm/loss"] < 0.5 and mean["prm/accuracy"] > 0.75
    assert mean["critic/score/mean"] > first["critic/score/mean"] + 0.3


SETTINGS = OptimiseSettings(parse(**PRIME, algorithm__prm={"beta": 0.5}), 1, "token-mean")
SCORES = [1.0, 0.0, 0.25]


def log_ratios(prm, reference):
    """Log-ratios of every response token by the model as it is now."""
    return [
        (prm.engine.infer([torch.tensor(p + r)])[0].log_probs[len(p) - 1 :] - before).tolist()
        for p, r, before in zip(PROMPTS, RESPONSES, reference, strict=True)
    ]


@pytest.mark.parametrize("micro_batch", [1, 2, 3])
def test_one_step_is_the_mean_cross_entropy_of_responses(micro_batch):
    prm = role("prm", optimizer=OptimizerConfig(lr=1e-2))
    prm.training.micro_batch = micro_batch
    reference = [-1.0 - x.abs() for x in per_token(4)]
    before = column(ref_log_probs=reference)
    losses, right = [], 0
    for ratios, mask, y in zip(log_ratios(prm, reference), MASKS, SCORES, strict=True):
        reward = 0.5 * sum(x for x, m in zip(ratios, mask, strict=True) if m)
        p = 1 / (1 + math.exp(-reward))
        losses.append(-y * math.log(p) - (1 - y) * math.log(1 - p))
        right += (reward > 0) == (y > 0.5)
    _, metrics = update_prm(PLACE, prm, SETTINGS, samples(), sequences(), Scores(SCORES), before)
    assert metrics["prm/loss"] == pytest.approx(sum(losses) / 3, rel=1e-5)
    assert metrics["prm/accuracy"] == pytest.approx(right / 3)
    rewards, told = process_rewards(PLACE, prm, SETTINGS, samples(), sequences(), before)
    after = [[0.5 * x for x in row] for row in log_ratios(prm, reference)]
    expected = [pytest.approx(row, rel=1e-5, abs=1e-6) for row in after]
    assert [row.tolist() for row in rewards["process_rewards"]] == expected
    assert told["prm/reward"] == pytest.approx(sum(counted(after)) / 3, rel=1e-5)


@pytest.mark.parametrize("score", [-0.1, 1.5, math.nan])
def test_scores_are_between_0_and_1(score):
    prm, before = role("prm", optimizer=OptimizerConfig()), column(ref_log_probs=per_token(4))
    scores = Scores([1.0, score, 0.0])
    with pytest.raises(TrainingError, match=f"has the score {score:g}, .* between 0 and 1"):
        update_prm(PLACE, prm, SETTINGS, samples(), sequences(), scores, before)


def test_a_resumed_run_goes_on_with_its_model_and_its_first_weights(tmp_path):
    changes = {"checkpoint__every": 2, "evaluation__every": 0}
    _, whole = loop(prime_run(tmp_path, steps=4, name="whole", **changes))
    loop(prime_run(tmp_path, steps=2, name="parts", **changes))
    again = prime_run(tmp_path, steps=4, name="parts", **changes)
    for weight in engine_of(again, "prm").weights.values():
        weight.zero_()  # the checkpoint fills it; its reference has what it was built with
    _, parts = loop(again, resumes=True)
    for mine, other in zip(parts[-2:], whole[-2:], strict=True):
        for name in ("prm/loss", "prm/reward", "prm/accuracy", "actor/pg_loss"):
            assert mine[name] == other[name], name


def test_roles_start_and_stand_where_those_before_them_do():
    placement = {"actor": "0-1", "prm": "2-3"}
    roles = {"actor": {"path": "models/a"}, "prm": {"parallel": {"tensor_parallel": 2}}}
    settings = parse(**PRIME, roles=roles, placement=placement).role_settings
    prm, reference = settings["prm"], settings["prm_reference"]
    assert prm.model.path == reference.model.path == "models/a"
    assert (prm.label, reference.label, reference.shares) == ("prm", "prm", "prm")
    assert prm.trainable and not reference.trainable
    roles = {"prm": {"path": "models/p"}, "prm_reference": {"dtype": "float32"}}
    own = parse(**PRIME, roles=roles).role_settings
    assert (own["prm_reference"].model.path, own["prm_reference"].shares) == ("models/p", None)
    assert own["actor"].model.path == "models/tiny"


UNUSED = "no operator of recipe rl uses this role"
REFUSED = {
    "without prime": ({"roles": {"prm": {}}}, UNUSED),
    "beta without prime": ({"algorithm__prm": {"beta": 0.1}}, "algorithm.prm has no effect with"),
    "another head": ({**PRIME, "roles": {"prm": {"head": "score"}}}, "needs language_model here"),
    "frozen": ({**PRIME, "roles": {"prm": {"trainable": False}}}, "trains this role"),
    "an optimizer of the reference": (
        {**PRIME, "roles": {"prm_reference": {"optimizer": {"lr": 1e-3}}}},
        "roles.prm_reference.optimizer: this role is not trained",
    ),
    "a shared engine's setting": (
        {**PRIME, "roles": {"prm_reference": {"offload": {"parameters": True}}}},
        "computes in the prm's engine; set roles.prm.offload",
    ),
    "one response": ({**PRIME, "rollout__num_samples": 1}, "prime compares the responses"),
}


@pytest.mark.parametrize(("changes", "words"), REFUSED.values(), ids=REFUSED)
def test_settings_that_cannot_be_honoured(changes, words):
    with pytest.raises(ConfigError, match=words):
        parse(**changes)


OWN = """
from verl_hpc.algorithms.advantage import Advantage

class Sum(Advantage):
    needs = frozenset({"process_rewards"})
    def __call__(self, batch):
        return batch.process_rewards * batch.mask
"""


@pytest.mark.parametrize("roles", [{"prm": {}}, {}])
def test_an_advantage_of_the_users_may_need_process_rewards(tmp_path, monkeypatch, roles):
    (tmp_path / "own.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    advantage = {"algorithm__advantage": {"name": "own.py:Sum"}}
    run = prime_run(tmp_path, steps=1, roles=roles, **advantage)
    if roles:
        assert loop(run)[1][0]["actor/grad_norm"] > 0
        return
    with pytest.raises(ConfigError, match=r"needs process rewards; give `roles: \{prm: \{\}\}`"):
        recipe_of(run)
