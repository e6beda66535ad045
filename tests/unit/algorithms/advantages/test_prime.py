"""PRIME's advantages from plain loops over responses and tokens."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.algorithms.scored import Row, agrees, owners, rows, scored, whitened
from verl_hpc.algorithms.advantages.prime import Prime
from verl_hpc.algorithms.role_losses import outcome_cross_entropy


def compared(reward, of_group):
    n = len(of_group)
    return reward if n == 1 else reward * n / (n - 1) - sum(of_group) / (n - 1)


def oracle(estimator):
    def of(rows):
        process = []
        for row in rows:
            last = row.counted[-1] if row.counted else None
            counts = [t in row.counted and t != last for t in range(len(row.mask))]
            # A row's values are its process rewards.
            process.append([v if c else 0.0 for v, c in zip(row.values, counts, strict=True)])
        if estimator.normalise == "batch":
            sums = [abs(sum(shaped[t:])) for shaped in process for t in range(len(shaped))]
            process = [[r / (max(sums) + 1e-6) for r in shaped] for shaped in process]
        means = [
            sum(shaped[t] for t in row.counted) / max(len(row.counted), 1)
            for row, shaped in zip(rows, process, strict=True)
        ]
        returns = []
        for row, shaped in zip(rows, process, strict=True):
            group = [i for i, other in enumerate(rows) if other.group == row.group]
            trained = [means[i] for i in group if rows[i].counted]
            rewards = [0.0] * len(row.mask)
            for t in row.counted:
                rewards[t] = estimator.process_weight * compared(shaped[t], trained)
            if row.counted:
                outcome = compared(row.score, [rows[i].score for i in group])
                rewards[row.counted[-1]] += estimator.outcome_weight * outcome
            returns.append([sum(rewards[t:]) for t in range(len(rewards))])
        return whitened(returns, rows)

    return of


OPTIONS = [{}, {"normalise": "none"}, {"process_weight": 0.0}, {"outcome_weight": 0.0}]


@given(rows(), owners, st.sampled_from(OPTIONS))
def test_against_loops(rows, owners, options):
    estimator = Prime(**options)
    agrees(estimator, oracle(estimator), rows, owners)


def test_by_hand():
    """Two answers of three tokens; the first is right, and its second token is a good one."""
    one = Row(0, 1.0, [0.0] * 3, [1, 1, 1], [0.0, 2.0, 9.0], 0.0)
    other = Row(0, 0.0, [0.0] * 3, [1, 1, 1], [0.0, -4.0, 9.0], 0.0)
    batch = scored([one, other])
    # Divided by 4: rewards 0, 0.5, 0 and 0, -1, 0; doubled, less the sum of means, -1 / 6.
    first = [1 / 6, 1 + 1 / 6, 1 / 6 + 1]
    second = [1 / 6, -2 + 1 / 6, 1 / 6 - 1]
    expected = whitened([[sum(r[t:]) for t in range(3)] for r in (first, second)], [one, other])
    found = Prime(process_weight=1.0, outcome_weight=1.0)(batch)
    assert found.tolist() == [pytest.approx(row, abs=1e-5) for row in expected]


def test_process_rewards_are_not_compared_with_a_response_that_is_left_out():
    kept = [
        Row(0, 1.0, [0.0] * 3, [1, 1, 1], [0.5, 2.0, 9.0], 0.0),
        Row(0, 0.0, [0.0] * 3, [1, 1, 0], [1.0, -4.0, 9.0], 0.0),
    ]
    left_out = Row(0, 0.5, [0.0] * 3, [0, 0, 0], [7.0, 7.0, 7.0], 0.0)
    estimator = Prime(outcome_weight=0.0)
    found = estimator(scored([*kept, left_out]))
    assert found.tolist() == [*estimator(scored(kept)).tolist(), [0.0] * 3]


@pytest.mark.parametrize("outcome", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("reward", [-800.0, -1.5, 0.0, 2.0, 800.0])
def test_the_cross_entropy_of_an_outcome(reward, outcome):
    leaf = torch.tensor([reward], dtype=torch.float64, requires_grad=True)
    loss = outcome_cross_entropy(leaf, torch.tensor([outcome], dtype=torch.float64))
    loss.sum().backward()
    # log(1 + exp(800)) is 800.
    chance = 1 / (1 + torch.exp(-leaf.detach().clamp(-700, 700)))
    if abs(reward) < 100:
        expected = -outcome * chance.log() - (1 - outcome) * (1 - chance).log()
    else:
        expected = torch.tensor([abs(reward) * ((1 - outcome) if reward > 0 else outcome)])
    assert loss.item() == pytest.approx(expected.item(), rel=1e-9, abs=1e-12)
    assert leaf.grad.item() == pytest.approx(chance.item() - outcome, rel=1e-9, abs=1e-12)
