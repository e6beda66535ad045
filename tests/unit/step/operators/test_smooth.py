"""Scores against a moving average, and the average in a checkpoint."""

import math

import pytest

from tests.unit.config.trees import parse
from tests.unit.trainer.runs import loop, small_run
from verl_hpc.config.reward import SmoothingConfig
from verl_hpc.errors import ConfigError
from verl_hpc.step.batch import Scores
from verl_hpc.step.number import Number
from verl_hpc.step.operators.smooth import SmoothSettings, smooth
from verl_hpc.testing.local_run import local_place

STEPS = [[0.0, 1.0, 1.0], [0.5, 0.25], [3.0, -1.0, 2.0, 2.0]]


def settings(**changes):
    place = local_place()
    averages = {name: Number(0.0, place) for name in ("mean", "square", "weight")}
    return SmoothSettings(SmoothingConfig(**changes), averages)


def reference(steps, decay):
    """Mean and deviation after each step, with all the weights written out."""
    found = []
    for last in range(len(steps)):
        weights = [(1 - decay) * decay ** (last - i) for i in range(last + 1)]
        mean = square = 0.0
        for weight, scores in zip(weights, steps[: last + 1], strict=True):
            mean += weight / sum(weights) * sum(scores) / len(scores)
            square += weight / sum(weights) * sum(x * x for x in scores) / len(scores)
        found.append((mean, math.sqrt(square - mean**2 + 1e-8)))
    return found


@pytest.mark.parametrize("decay", [0.0, 0.5, 0.99])
@pytest.mark.parametrize("by", ["mean", "mean_and_std"])
def test_scores_are_measured_against_the_average(decay, by):
    known = settings(decay=decay, by=by, clip=None)
    for scores, (mean, std) in zip(STEPS, reference(STEPS, decay), strict=True):
        found, metrics = smooth(local_place(), known, Scores(scores, 2, [{"x": 1.0}]))
        scale = std if by == "mean_and_std" else 1.0
        assert found.values == pytest.approx([(x - mean) / scale for x in scores], abs=1e-9)
        assert (found.num_failed, found.details) == (2, [{"x": 1.0}])
        assert metrics == pytest.approx({"reward/ema_mean": mean, "reward/ema_std": std}, abs=1e-9)


def test_what_tokens_earn_has_the_same_scale():
    known = settings(decay=0.0, by="mean_and_std", clip=None)
    given = Scores([3.0, 1.0], per_token={0: {2: 1.0, 4: 2.0}})
    found, metrics = smooth(local_place(), known, given)
    scale = metrics["reward/ema_std"]
    assert found.per_token == {0: {2: pytest.approx(1 / scale), 4: pytest.approx(2 / scale)}}
    assert found.values == pytest.approx([1 / scale, -1 / scale])


def test_equal_scores_are_zero_and_large_ones_are_clipped():
    found, _ = smooth(local_place(), settings(clip=0.5), Scores([2.0, 2.0]))
    assert list(found.values) == [0.0, 0.0]
    found, _ = smooth(local_place(), settings(clip=0.5), Scores([0.0, 0.0, 0.0, 9.0]))
    assert found.values[3] == 0.5


def test_a_run_that_resumes_has_the_average_of_one_that_did_not(tmp_path):
    changes = {
        "reward__smoothing": {"decay": 0.5},
        "algorithm__advantage": {"name": "reinforce_plus_plus"},
        "checkpoint__every": 1,
    }
    whole = loop(small_run(tmp_path, name="whole", steps=3, **changes))[1]
    loop(small_run(tmp_path, name="parts", steps=2, **changes))
    parts = loop(small_run(tmp_path, name="parts", steps=3, **changes), resumes=True)[1]
    for name in ("reward/ema_mean", "reward/ema_std", "critic/rewards/mean", "actor/loss"):
        assert [line[name] for line in parts] == [line[name] for line in whole], name
    assert whole[0]["critic/rewards/mean"] == pytest.approx(0.0, abs=1e-9)
    assert whole[0]["critic/score/mean"] > 0


def test_smoothing_where_it_would_do_nothing_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="smoothing with recipe: sft"):
        parse(recipe="sft", reward__smoothing={})
    remax = {"rollout__num_samples": 1, "algorithm__advantage": {"name": "remax"}}
    with pytest.raises(ConfigError, match="reward.smoothing with algorithm.advantage"):
        loop(small_run(tmp_path, steps=1, reward__smoothing={}, **remax))
