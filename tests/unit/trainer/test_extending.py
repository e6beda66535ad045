"""An estimator and a policy loss of a user, one file each; nothing of the package is touched."""

from pathlib import Path

import pytest
import torch

from tests.unit.trainer.operators.batches import (
    PLACE,
    column,
    per_token,
    role,
    samples,
    sequences,
)
from tests.unit.trainer.runs import loop, small_run
from verl_hpc.config.model import OptimizerConfig
from verl_hpc.errors import ConfigError
from verl_hpc.rewards.user_code import load_function
from verl_hpc.trainer.operators.optimise import OptimiseSettings
from verl_hpc.trainer.recipes import find_recipe, make_recipe

EXAMPLES = Path(__file__).parents[3] / "examples"


def example(name, function):
    return load_function(f"{EXAMPLES}/{name}.py:{function}")


def example_run(directory, name, **algorithm):
    recipe = f"{EXAMPLES}/{name}.py:{name}"
    roles = {"actor": {}} | ({"reference": {}} if "kl" in algorithm else {})
    return small_run(directory, recipe=recipe, steps=3, roles=roles, algorithm=algorithm)


MEANS = {"aggregation": "seq-mean-token-mean"}


@pytest.mark.parametrize("name, algorithm", [("rloo", {}), ("gspo", MEANS)])
def test_an_algorithm_in_a_file_trains(tmp_path, name, algorithm):
    run = example_run(tmp_path, name, **algorithm)
    before = {n: w.clone() for n, w in run.roles["actor"].training.weights.items()}
    result, lines = loop(run)
    assert result.outcome == "finished"
    assert all(line["actor/grad_norm"] > 0 for line in lines if "actor/grad_norm" in line)
    after = run.roles["actor"].training.weights
    assert any(not torch.equal(before[n], after[n]) for n in after)


IN_LOSS, IN_REWARD = ({"placement": where, "coefficient": 0.1} for where in ("loss", "reward"))
CORRECTION = {"upper": 3.0}


@pytest.mark.parametrize(
    "name, algorithm, words",
    [
        ("gspo", {}, ["algorithm.aggregation = token-mean", "choose seq-mean-token-mean"]),
        ("gspo", {"kl": IN_LOSS}, ["algorithm.kl.placement = loss", "choose reward or none"]),
        ("gspo", {"correction": CORRECTION}, ["algorithm.correction = {'upper': 3.0}", "leave"]),
        ("distillation", {"kl": IN_LOSS}, ["algorithm.kl.placement = loss", "choose none"]),
        ("distillation", {"kl": IN_REWARD}, ["algorithm.kl.placement = reward", "choose none"]),
    ],
)
def test_a_setting_that_an_algorithm_has_no_use_for(tmp_path, name, algorithm, words):
    run = example_run(tmp_path, name, **algorithm)
    with pytest.raises(ConfigError) as caught:
        make_recipe(run, find_recipe(run.config.recipe, 60.0))
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    "name, algorithm, metric",
    [
        ("rloo", {"kl": IN_LOSS}, "actor/kl_loss"),
        ("rloo", {"kl": IN_REWARD}, "actor/reward_kl_penalty"),
        ("rloo", {"correction": CORRECTION}, "actor/correction_weight"),
        ("gspo", MEANS | {"kl": IN_REWARD}, "actor/reward_kl_penalty"),
    ],
)
def test_a_setting_that_an_algorithm_uses(tmp_path, name, algorithm, metric):
    _, lines = loop(example_run(tmp_path, name, **algorithm))
    assert metric in lines[-2] | lines[-1]


def test_rloo_against_every_mean_of_the_others():
    rewards = torch.tensor([1.0, 0.0, 0.5, 2.0, 7.0, 3.0], dtype=torch.float64)
    groups = torch.tensor([0, 1, 0, 0, 2, 1])
    found = example("rloo", "leave_one_out")(rewards, groups)
    for i, reward in enumerate(rewards.tolist()):
        peers = [float(rewards[j]) for j in range(6) if groups[j] == groups[i] and j != i]
        mean = sum(peers) / len(peers) if peers else 0.0
        assert float(found[i]) == pytest.approx(reward - mean)


def test_gspo_against_ratios_of_sequences():
    """Before any update the loss is -A of each sequence, whose gradient is -A of its tokens'."""
    actor = role(optimizer=OptimizerConfig(lr=1e-3, clip_grad=0.0))
    old = column(old_log_probs=per_token(1, 0.1))
    advantages = column(
        advantages=[
            torch.full((len(r),), a) for r, a in zip(per_token(2), (1.0, -0.5, 2.0), strict=True)
        ]
    )
    settings = OptimiseSettings(1, "seq-mean-token-mean", 1.0)
    update = example("gspo", "update_gspo")
    _, metrics = update(PLACE, actor, settings, samples(), sequences(), old, advantages)
    engine = role().training
    outputs = engine.infer(sequences()["tokens"])
    expected = 0.0
    for i, output in enumerate(outputs):
        sample = samples().samples[i]
        mask = sequences()["mask"][i].double()
        log_probs = output.log_probs[sample.prompt_length - 1 :].double()
        mean = float(((log_probs - old["old_log_probs"][i].double()) * mask).sum() / mask.sum())
        ratio = float(torch.tensor(mean).exp())
        clipped = min(max(ratio, 1 - 3e-4), 1 + 4e-4)
        advantage = float(advantages["advantages"][i][0])
        expected += max(-advantage * ratio, -advantage * clipped) / 3
    assert metrics["actor/loss"] == pytest.approx(expected, rel=1e-4)
