"""KL in the reward, on one rank."""

from types import SimpleNamespace

import pytest
import torch

from verl_hpc.algorithms.kl import KlController
from verl_hpc.config.algorithm import AlgorithmConfig, KlConfig
from verl_hpc.trainer.batch import (
    OLD_LOG_PROBS,
    REF_LOG_PROBS,
    VALUES,
    Columns,
    Sample,
    Samples,
)
from verl_hpc.trainer.measure import step_metrics
from verl_hpc.trainer.operators.advantages import group_advantages, penalise, token_advantages
from verl_hpc.trainer.operators.score import Scores

OLD = [torch.tensor([-1.0, -2.0, -0.5]), torch.tensor([-1.5]), torch.tensor([-0.2, -0.4])]
REFERENCE = [torch.tensor([-1.3, -2.9, -0.4]), torch.tensor([-1.0]), torch.tensor([-0.2, -1.2])]
DIFFERENCES = [[0.3, 0.9, -0.1], [-0.5], [0.0, 0.8]]
SCORES = Scores([1.0, 0.0, 0.5], 0, {})


@pytest.fixture
def samples():
    rows = [Sample(i, 0, 4, len(row), False) for i, row in enumerate(OLD)]
    return Samples(tuple(rows), {"train": [0, 0, 0]}, [[0, 1, 2]])


def workers(advantage=None, **controller):
    return SimpleNamespace(
        config=SimpleNamespace(
            algorithm=AlgorithmConfig(kl=KlConfig(placement="reward")), advantage=advantage
        ),
        kl=KlController(0.5, **controller),
        session=SimpleNamespace(device=torch.device("cpu")),
        reduce=lambda tensor: tensor,
    )


def penalty_of(samples, some):
    old, reference = {OLD_LOG_PROBS: OLD}, {REF_LOG_PROBS: REFERENCE}
    return penalise(some, samples, Columns([0, 1, 2], old), Columns([0, 1, 2], reference))


def test_the_controller_is_told_the_mean_of_the_rows_means(samples):
    """As verl does: a long response counts as much as a short one."""
    some = workers(target=0.1, horizon=30)
    rows = [sum(row) / len(row) for row in DIFFERENCES]
    mean = sum(rows) / 3
    penalty = penalty_of(samples, some)
    assert penalty.mean == pytest.approx(mean, rel=1e-6)
    assert mean != pytest.approx(sum(map(sum, DIFFERENCES)) / 6, rel=0.1), "not that of the tokens"
    metrics = step_metrics({"scores": SCORES, "penalty": penalty})
    assert metrics["actor/reward_kl_penalty"] == penalty.mean
    assert metrics["actor/reward_kl_penalty_coeff"] == 0.5
    error = max(min(mean / 0.1 - 1, 0.2), -0.2)
    assert some.kl.coefficient == pytest.approx(0.5 * (1 + error * 3 / 30), rel=1e-6)


def test_rewards_are_the_scores_after_the_penalty(samples):
    penalty = penalty_of(samples, workers())
    metrics = step_metrics({"scores": SCORES, "penalty": penalty})
    rewards = [s - 0.5 * sum(row) for s, row in zip(SCORES.values, DIFFERENCES, strict=True)]
    assert metrics["critic/rewards/mean"] == pytest.approx(sum(rewards) / 3, rel=1e-6)
    assert metrics["critic/rewards/max"] == pytest.approx(max(rewards), rel=1e-6)
    assert metrics["critic/rewards/min"] == pytest.approx(min(rewards), rel=1e-6)
    assert metrics["critic/score/mean"] == 0.5
    assert step_metrics({"scores": SCORES})["critic/rewards/mean"] == 0.5


def test_both_estimators_see_the_rewards_after_the_penalty(samples):
    from verl_hpc.config.algorithm import GaeConfig, GrpoConfig

    old = Columns([0, 1, 2], {OLD_LOG_PROBS: OLD})
    grouped = workers(GrpoConfig(normalise_by_std=False))
    rewards = [s - 0.5 * sum(row) for s, row in zip(SCORES.values, DIFFERENCES, strict=True)]
    found = group_advantages(grouped, samples, SCORES, old, penalty_of(samples, grouped))
    for row, reward in zip(found["advantages"], rewards, strict=True):
        assert row.tolist() == pytest.approx([reward - sum(rewards) / 3] * len(row), abs=1e-6)
    learned = workers(GaeConfig())
    values = Columns([0, 1, 2], {VALUES: [torch.zeros(len(row)) for row in OLD]})
    returns = token_advantages(learned, SCORES, values, penalty_of(samples, learned))["returns"]
    assert [float(row[0]) for row in returns] == pytest.approx(rewards, abs=1e-6)
