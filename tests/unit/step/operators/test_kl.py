"""KL in the reward, on one rank."""

import pytest
import torch

from verl_hpc.algorithms.kl import KlController
from verl_hpc.step.batch import MASK, OLD_LOG_PROBS, REF_LOG_PROBS, Columns, Sample, Samples
from verl_hpc.step.operators.kl import KlSettings, kl_in_reward
from verl_hpc.testing.local_run import local_place

OLD = [torch.tensor([-1.0, -2.0, -0.5]), torch.tensor([-1.5]), torch.tensor([-0.2, -0.4])]
REFERENCE = [torch.tensor([-1.3, -2.9, -0.4]), torch.tensor([-1.0]), torch.tensor([-0.2, -1.2])]
DIFFERENCES = [[0.3, 0.9, -0.1], [-0.5], [0.0, 0.8]]
EVERYTHING = [[1, 1, 1], [1], [1, 1]]


def penalise(controller, masks=EVERYTHING, estimator="k1", order=(0, 1, 2)):
    rows = [Sample(i, 0, 4, len(row), False) for i, row in enumerate(OLD)]

    def column(name, found):
        return Columns(list(order), {name: [found[i] for i in order]})

    return kl_in_reward(
        local_place(),
        KlSettings(estimator, controller),
        Samples(tuple(rows), {"train": [0, 0, 0]}, [[0, 1, 2]]),
        column(MASK, [torch.tensor(mask, dtype=torch.uint8) for mask in masks]),
        column(OLD_LOG_PROBS, OLD),
        column(REF_LOG_PROBS, REFERENCE),
    )


def test_the_controller_is_told_the_mean_of_the_rows_means():
    """A long response counts as much as a short one, which is verl's way."""
    controller = KlController(0.5, target=0.1, horizon=30)
    mean = sum([sum(row) / len(row) for row in DIFFERENCES]) / 3
    assert mean != pytest.approx(sum(map(sum, DIFFERENCES)) / 6, rel=0.1), "not that of the tokens"
    _, metrics = penalise(controller)
    assert metrics == {
        "actor/reward_kl_penalty": pytest.approx(mean, rel=1e-6),
        "actor/reward_kl_penalty_coeff": 0.5,
    }
    assert controller.num_updates == 1
    error = max(min(mean / 0.1 - 1, 0.2), -0.2)
    assert controller.coefficient == pytest.approx(0.5 * (1 + error * 3 / 30), rel=1e-6)


def test_the_penalty_of_a_step_has_the_coefficient_from_before_it():
    penalty, _ = penalise(KlController(0.5, target=0.1, horizon=30))
    for row, differences in zip(penalty.per_token, DIFFERENCES, strict=True):
        assert row.tolist() == pytest.approx([0.5 * d for d in differences], abs=1e-6)
    assert penalty.per_sample.tolist() == pytest.approx([0.5 * sum(d) for d in DIFFERENCES])
    assert penalty.per_sample.dtype == torch.float64


def test_masked_tokens_cost_nothing_and_count_for_nothing():
    masks = [[1, 0, 1], [1], [0, 0]]
    penalty, metrics = penalise(KlController(2.0), masks)
    assert penalty.per_token[0].tolist() == pytest.approx([0.6, 0.0, -0.2], abs=1e-6)
    assert penalty.per_token[2].tolist() == [0.0, 0.0]
    assert penalty.per_sample.tolist() == pytest.approx([0.4, -1.0, 0.0], abs=1e-6)
    mean = ((0.3 - 0.1) / 2 - 0.5 + 0) / 3
    assert metrics["actor/reward_kl_penalty"] == pytest.approx(mean, rel=1e-5)


def test_sums_are_by_position():
    plain, _ = penalise(KlController(1.0))
    turned, _ = penalise(KlController(1.0), order=(2, 0, 1))
    assert turned.per_sample.tolist() == plain.per_sample.tolist()
    assert turned.per_token[0].tolist() == plain.per_token[2].tolist()


def test_the_estimator_is_the_one_that_was_chosen():
    penalty, _ = penalise(KlController(1.0), estimator="k2")
    for row, differences in zip(penalty.per_token, DIFFERENCES, strict=True):
        assert row.tolist() == pytest.approx([d * d / 2 for d in differences], abs=1e-6)
