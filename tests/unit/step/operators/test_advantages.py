"""Advantages of one rank's samples, against plain loops over their tokens."""

import pytest
import torch

from tests.unit.step.operators.batches import (
    MASKS,
    PLACE,
    column,
    counted,
    per_token,
    samples,
    sequences,
)
from verl_hpc.algorithms.advantage import Advantage
from verl_hpc.algorithms.advantages.gae import Gae
from verl_hpc.algorithms.advantages.gdpo import Gdpo
from verl_hpc.algorithms.advantages.gpg import Gpg
from verl_hpc.algorithms.advantages.grpo import Grpo
from verl_hpc.algorithms.advantages.opo import Opo
from verl_hpc.algorithms.advantages.optimal_token_baseline import OptimalTokenBaseline
from verl_hpc.algorithms.advantages.reinforce_plus_plus_baseline import ReinforcePlusPlusBaseline
from verl_hpc.algorithms.advantages.remax import Remax
from verl_hpc.algorithms.advantages.rloo import Rloo
from verl_hpc.errors import TrainingError
from verl_hpc.step.batch import Sample, Samples, Scores
from verl_hpc.step.operators.advantages import advantages
from verl_hpc.step.operators.kl import Penalty

SCORES = Scores([1.0, 0.0, 0.5], 0, {})


def penalty():
    """A penalty of any size, which takes nothing for tokens that do not count."""
    rows = [row * torch.tensor(mask) for row, mask in zip(per_token(7, 0.3), MASKS, strict=True)]
    return Penalty(rows, torch.tensor([float(row.sum()) for row in rows], dtype=torch.float64))


def rewards_of(taken):
    off = [0.0] * 3 if taken is None else taken.per_sample.tolist()
    return [score - cost for score, cost in zip(SCORES.values, off, strict=True)]


@pytest.mark.parametrize("taken", [None, penalty()])
def test_a_group_is_compared_with_itself(taken):
    columns, metrics = advantages(
        PLACE, Grpo(std="none"), samples(), sequences(), SCORES, penalty=taken
    )
    first, second, alone = rewards_of(taken)
    mean = (first + second) / 2
    expected = [first - mean, second - mean, alone]
    for row, mask, value in zip(columns["advantages"], MASKS, expected, strict=True):
        assert row.tolist() == pytest.approx([value * counts for counts in mask], abs=1e-6)
        assert row.dtype == torch.float32
    assert columns.positions == [0, 1, 2]
    tokens = [v for v, mask in zip(expected, MASKS, strict=True) for _ in range(sum(mask))]
    assert metrics == {
        "critic/rewards/mean": pytest.approx((first + second + alone) / 3),
        "critic/rewards/max": pytest.approx(max(first, second, alone)),
        "critic/rewards/min": pytest.approx(min(first, second, alone)),
        "critic/advantages/mean": pytest.approx(sum(tokens) / len(tokens)),
        "critic/advantages/max": pytest.approx(max(tokens)),
        "critic/advantages/min": pytest.approx(min(tokens)),
    }


def test_values_and_returns_are_told_of_tokens_that_count():
    values = per_token(3)
    found, metrics = by_values(Gae(), values)
    for name, rows in (("values", values), ("returns", found["returns"])):
        tokens = counted(rows)
        assert metrics[f"critic/{name}/mean"] == pytest.approx(sum(tokens) / len(tokens))
        ends = metrics[f"critic/{name}/max"], metrics[f"critic/{name}/min"]
        assert ends == pytest.approx((max(tokens), min(tokens)))


def test_rewards_of_parts_are_those_that_every_response_has():
    details = [{"form": 1.0, "right": 1.0}, {"form": 0.0}, {"form": 0.0, "right": 0.0}]
    scores = Scores(SCORES.values, 0, details)
    given = PLACE, Gdpo(rewards=("form",)), samples(), sequences(), scores
    assert max(advantages(*given)[0]["advantages"][0]) > 0
    with pytest.raises(TrainingError, match="right is not there .* those that are: form, score"):
        advantages(*given[:1], Gdpo(rewards=("right",)), *given[2:])


def test_a_rank_has_the_advantages_of_its_own_samples():
    mine = column(mask=sequences()["mask"][1:])
    mine.positions = [1, 2]
    found, _ = advantages(PLACE, Grpo(std="none"), samples(), mine, SCORES)
    assert [row.tolist() for row in found["advantages"]] == [[-0.5] * 2, [0, 0.5, 0.5, 0]]


def by_values(settings, values, taken=None):
    given = column(values=values)
    return advantages(PLACE, settings, samples(), sequences(), SCORES, given, taken)


def slow_gae(rewards, values, masks, gamma, lam):
    """Advantages and returns of the tokens that count, as if there were no others."""
    flat, returns = [], []
    for row, value, mask in zip(rewards, values, masks, strict=True):
        places = [t for t, count in enumerate(mask) if count]
        advantages = {}
        for index, t in reversed(list(enumerate(places))):
            after = places[index + 1] if index + 1 < len(places) else None
            next_value = 0.0 if after is None else float(value[after])
            delta = row[t] + gamma * next_value - float(value[t])
            advantages[t] = delta + gamma * lam * advantages.get(after, 0.0)
        flat += [advantages[t] for t in places]
        returns += [advantages[t] + float(value[t]) for t in places]
    mean = sum(flat) / len(flat)
    deviation = (sum((a - mean) ** 2 for a in flat) / (len(flat) - 1)) ** 0.5
    return [(a - mean) / deviation for a in flat], returns


@pytest.mark.parametrize("taken", [None, penalty()])
@pytest.mark.parametrize(("gamma", "lam"), [(1.0, 1.0), (0.9, 0.7)])
def test_gae_goes_from_token_that_counts_to_token_that_counts(taken, gamma, lam):
    values = per_token(3)
    rewards = [[0.0] * len(mask) for mask in MASKS]
    for i, mask in enumerate(MASKS):
        rewards[i][max(t for t, count in enumerate(mask) if count)] += SCORES.values[i]
        for t in range(len(mask)):
            rewards[i][t] -= 0.0 if taken is None else float(taken.per_token[i][t])
    expected, returns = slow_gae(rewards, values, MASKS, gamma, lam)
    columns, _ = by_values(Gae(gamma=gamma, lam=lam), values, taken)
    assert counted(columns["advantages"]) == pytest.approx(expected, abs=1e-5)
    assert counted(columns["returns"]) == pytest.approx(returns, abs=1e-5)
    assert [len(row) for row in columns["advantages"]] == [len(mask) for mask in MASKS]
    assert counted(columns["advantages"], [[1 - m for m in mask] for mask in MASKS]) == [0.0] * 4


def test_a_rank_without_samples_takes_part():
    mine = column(mask=[], values=[])
    mine.positions = []
    found, metrics = advantages(PLACE, Gae(), samples(), mine, SCORES, mine)
    assert found.values == {"advantages": [], "returns": []}
    assert metrics["critic/rewards/mean"] == 0.5


def test_the_greedy_answer_is_that_of_the_samples_prompt():
    # Answers to the second prompt and to the first: groups say which.
    answers = Samples((Sample(0, 1, 3, 2, False), Sample(1, 0, 2, 2, False)), {"rollout": [0, 0]})
    greedy = {"greedy_samples": answers, "greedy_scores": Scores([0.25, 0.75])}
    found, _ = advantages(PLACE, Remax(), samples(), sequences(), SCORES, **greedy)
    expected = [1.0 - 0.75, 0.0 - 0.75, 0.5 - 0.25]
    for row, mask, value in zip(found["advantages"], MASKS, expected, strict=True):
        assert row.tolist() == pytest.approx([value * m for m in mask])


LISTED = {0: {0: 0.25, 2: 0.5, 4: -1.0}, 2: {0: 8.0, 1: 1.0, 3: 2.0}}
"""What tokens earn, by sample, also those that do not count. The second sample has a number."""
EARNED = [[0.75, 0.0, 0.0, 0.0, -1.0], [0.0, 4.0], [0.0, 1.0, 2.0, 0.0]]
"""What tokens that count earn, each with what those behind it earn that do not."""
OF_LISTS = Scores([-0.25, 4.0, 11.0], per_token=LISTED)


def summed(scores):
    """These scores without lists."""
    return Scores(scores.values)


def test_gae_takes_what_each_token_earns():
    values = per_token(3)
    expected, returns = slow_gae(EARNED, values, MASKS, 0.9, 0.7)
    found, metrics = advantages(
        PLACE, Gae(gamma=0.9, lam=0.7), samples(), sequences(), OF_LISTS, column(values=values)
    )
    assert counted(found["advantages"]) == pytest.approx(expected, abs=1e-5)
    assert counted(found["returns"]) == pytest.approx(returns, abs=1e-5)
    assert metrics["critic/rewards/mean"] == pytest.approx((-0.25 + 4.0 + 11.0) / 3)


def rewards_to_go():
    """Rewards to come, one number for each token that counts."""
    returns = []
    for earned, mask in zip(EARNED, MASKS, strict=True):
        left = [value for value, count in zip(earned, mask, strict=True) if count]
        returns += [sum(left[start:]) for start in range(len(left))]
    return returns


def test_remax_takes_the_greedy_answer_off_what_is_to_come():
    greedy = Samples((Sample(0, 0, 2, 2, False), Sample(1, 1, 3, 2, False)), {"rollout": [0, 0]})
    found, _ = advantages(
        *(PLACE, Remax(), samples(), sequences(), OF_LISTS),
        greedy_samples=greedy,
        greedy_scores=Scores([0.5, 0.0], per_token={0: {1: 0.5}}),
    )
    expected = [v - (0.5 if i < 5 else 0.0) for i, v in enumerate(rewards_to_go())]
    assert counted(found["advantages"]) == pytest.approx(expected, abs=1e-6)


def test_estimators_of_outcomes_take_the_sum():
    for settings in (Grpo(), Rloo(), Opo(), Gpg(), ReinforcePlusPlusBaseline()):
        found, _ = advantages(PLACE, settings, samples(), sequences(), OF_LISTS)
        expected, _ = advantages(PLACE, settings, samples(), sequences(), summed(OF_LISTS))
        assert counted(found["advantages"]) == counted(expected["advantages"]), settings.name


def test_the_last_token_earns_what_the_score_has_beyond_its_tokens():
    """A penalty on long responses, a term that is a number, a mean that was taken off."""
    values = [torch.zeros(len(mask)) for mask in MASKS]
    given = Scores([-1.25, 4.0, 11.0], per_token=LISTED)
    rewards = [row[:] for row in EARNED]
    rewards[0][4] -= 1.0
    _, returns = slow_gae(rewards, values, MASKS, 1.0, 1.0)
    found, _ = advantages(PLACE, Gae(), samples(), sequences(), given, column(values=values))
    assert counted(found["returns"]) == pytest.approx(returns, abs=1e-6)


class OfNoShape(Advantage):
    name: str = "own.py:OfNoShape"

    def __call__(self, batch):
        return batch.scores[:2]


class Returns(OfNoShape):
    def __call__(self, batch):
        return batch.mask, batch.mask


def test_an_estimator_of_the_users_that_gives_something_else():
    with pytest.raises(TrainingError, match=r"own.py:OfNoShape: gives advantages of shape \(2,\)"):
        advantages(PLACE, OfNoShape(), samples(), sequences(), SCORES)
    with pytest.raises(TrainingError, match="gives 2 values; expected advantages$"):
        advantages(PLACE, Returns(), samples(), sequences(), SCORES)
    with pytest.raises(TrainingError, match="gives 1 values; expected advantages, returns$"):
        by_values(OfNoShape(), per_token(3))


def test_the_optimal_token_baseline_is_given_the_policys_numbers():
    log_p = [torch.full((len(m),), -0.7) for m in MASKS]
    given = column(old_log_probs=log_p, sum_p_squared=[row.exp() ** 2 for row in log_p])
    found, _ = advantages(PLACE, OptimalTokenBaseline(), samples(), sequences(), SCORES, old=given)
    # All tokens weigh the same, so that the weight of a place is its number.
    first, second, alone = SCORES.values
    half = (first - second) / 2
    # Nobody else has the third token of the first.
    expected = [half, half, first, -half, -half, alone, alone]
    assert counted(found["advantages"]) == pytest.approx(expected, abs=1e-5)
