"""Every advantage estimator against loops over responses and tokens, on one rank and on several."""

import math
import random
import statistics
from dataclasses import replace

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.unit.algorithms.scored import (
    Row,
    agrees,
    mates,
    of_responses,
    owners,
    rows,
    scored,
    simple,
    whitened,
)
from verl_hpc.algorithms import advantages
from verl_hpc.algorithms.advantage import Advantage
from verl_hpc.algorithms.choices import members
from verl_hpc.errors import TrainingError

ESTIMATORS = members(advantages, Advantage)


def mean_of(scores):
    """The mean of a group's scores, 0 of a single one."""
    return statistics.fmean(scores) if len(scores) > 1 else 0.0


def deviation_of(scores):
    return statistics.stdev(scores) if len(scores) > 1 else 1.0


def sums_from_here_on(rewards):
    return [sum(rewards[t:]) for t in range(len(rewards))]


def generalised(row, gamma, lam):
    """A_t = sum over k of (gamma lam)^k delta_{t+k}; nothing follows the last token."""
    rewards, values = ([of[t] for t in row.counted] for of in (row.rewards, row.values))
    n, following = len(values), [*values[1:], 0.0]
    delta = [rewards[t] + gamma * following[t] - values[t] for t in range(n)]
    sums = [0.0] * len(row.mask)
    for i, t in enumerate(row.counted):
        sums[t] = sum((gamma * lam) ** k * delta[i + k] for k in range(n - i))
    return sums


def gae(e, rows):
    used = e.lam if e.value_lam is None else e.value_lam
    returns = [
        [a + v for a, v in zip(generalised(row, e.gamma, used), row.values, strict=True)]
        for row in rows
    ]
    return whitened([generalised(row, e.gamma, e.lam) for row in rows], rows), returns


def gdpo(e, rows):
    """Its two rewards are those that `scored` makes of a row."""
    totals = [0.0] * len(rows)
    rewards = {"score": lambda row: row.score, "form": lambda row: row.greedy * row.score}
    for name, weight in zip(e.rewards, e.weights or [1.0] * len(e.rewards), strict=True):
        for i, row in enumerate(rows):
            group = [rewards[name](other) for other in rows if other.group == row.group]
            scale = deviation_of(group) + e.epsilon if e.std == "group" else 1.0
            totals[i] += weight * (rewards[name](row) - mean_of(group)) / scale
    return whitened(of_responses(rows, totals), rows)


def gpg(e, rows):
    alpha = len(rows) / max(sum(row.score != 0 for row in rows), 1)
    centred = [row.score - mean_of(mates(rows, row)) for row in rows]
    return of_responses(rows, [alpha * x / e.f_norm for x in centred])


def grpo(e, rows):
    scaled = []
    for row in rows:
        compared = mates(rows, row) if e.std == "group" else [r.score for r in rows]
        by = 1.0 if e.std == "none" else deviation_of(compared) + e.epsilon
        scaled.append((row.score - mean_of(mates(rows, row))) / by)
    return of_responses(rows, scaled)


def turns_of(row):
    """Places of the tokens of each turn."""
    turns = []
    for t in row.counted:
        if turns and t - 1 in turns[-1]:
            turns[-1].append(t)
        else:
            turns.append([t])
    return turns


def grpo_turns(e, rows):
    def earned(row, k):
        return sum(row.rewards[t] for turn in turns_of(row)[k:] for t in turn)

    of_rows = []
    for row in rows:
        of_rows.append([0.0] * len(row.mask))
        for k, turn in enumerate(turns_of(row)):
            there = [r for r in rows if r.group == row.group and len(turns_of(r)) > k]
            compared = [earned(r, k) for r in there]
            if len(there) > 1:
                by = deviation_of(compared) + e.epsilon if e.std == "group" else 1.0
                for t in turn:
                    of_rows[-1][t] = (earned(row, k) - mean_of(compared)) / by
    return of_rows


def grpo_passk(e, rows):
    leads = []
    for row in rows:
        first, second, *_ = sorted(mates(rows, row), reverse=True)
        lead = first - second if row.score == first else 0.0
        leads.append(lead / (deviation_of(mates(rows, row)) + 1e-6 if e.std == "group" else 1.0))
    return of_responses(rows, leads)


def opo(_, rows):
    centred = []
    for row in rows:
        group = [r for r in rows if r.group == row.group]
        weighed = sum(len(r.counted) * r.score for r in group)
        baseline = weighed / max(sum(len(r.counted) for r in group), 1)
        centred.append(row.score - (baseline if len(group) > 1 else 0.0))
    return of_responses(rows, centred)


def optimal_token_baseline(e, rows):
    def reward_to_go(row, place):
        return sum(row.rewards[t] for t in row.counted[place:])

    def weight(row, place):
        so_far = row.counted[: place + 1]
        return sum(1 - 2 * math.exp(row.log_probs[t]) + row.squares[t] for t in so_far)

    of_rows = []
    for row in rows:
        of_rows.append([0.0] * len(row.mask))
        group = [r for r in rows if r.group == row.group and r.counted]
        for place, t in enumerate(row.counted):
            there = [r for r in group if len(r.counted) > place]
            total = sum(weight(r, place) for r in there) + 1e-8
            baseline = sum(reward_to_go(r, place) * weight(r, place) for r in there) / total
            if len(group) == 1 or (e.handle_zero_tail and len(there) == 1):
                baseline = 0.0
            of_rows[-1][t] = reward_to_go(row, place) - baseline
    return of_rows


def prime(e, rows):
    def compared(reward, of_group):
        n = len(of_group)
        return reward if n == 1 else reward * n / (n - 1) - sum(of_group) / (n - 1)

    # A row's values are its process rewards; its last token that counts has none.
    process = [
        [v if t in row.counted[:-1] else 0.0 for t, v in enumerate(row.values)] for row in rows
    ]
    if e.normalise == "batch":
        largest = max(abs(x) for shaped in process for x in sums_from_here_on(shaped))
        process = [[r / (largest + 1e-6) for r in shaped] for shaped in process]
    means = [sum(p) / max(len(row.counted), 1) for row, p in zip(rows, process, strict=True)]
    returns = []
    for row, shaped in zip(rows, process, strict=True):
        group = [i for i, other in enumerate(rows) if other.group == row.group]
        trained = [means[i] for i in group if rows[i].counted]
        rewards = [0.0] * len(row.mask)
        for t in row.counted:
            rewards[t] = e.process_weight * compared(shaped[t], trained)
        if row.counted:
            outcome = compared(row.score, [rows[i].score for i in group])
            rewards[row.counted[-1]] += e.outcome_weight * outcome
        returns.append(sums_from_here_on(rewards))
    return whitened(returns, rows)


def reinforce_plus_plus(e, rows):
    returns = [[0.0] * len(row.mask) for row in rows]
    for row, found in zip(rows, returns, strict=True):
        for i, t in enumerate(row.counted):
            found[t] = sum(e.gamma**k * row.rewards[s] for k, s in enumerate(row.counted[i:]))
    return whitened(returns, rows)


def reinforce_plus_plus_baseline(_, rows):
    centred = [row.score - mean_of(mates(rows, row)) for row in rows]
    return whitened(of_responses(rows, centred), rows)


def remax(_, rows):
    return [
        [
            sum(row.rewards[k] for k in row.counted if k >= t) - row.greedy if counts else 0.0
            for t, counts in enumerate(row.mask)
        ]
        for row in rows
    ]


def rloo(_, rows):
    centred = []
    for i, row in enumerate(rows):
        others = [r.score for j, r in enumerate(rows) if r.group == row.group and j != i]
        centred.append(row.score - (statistics.fmean(others) if others else 0.0))
    return of_responses(rows, centred)


ORACLES = {
    gae: [{}, {"gamma": 0.95, "lam": 0.5}, {"lam": 0.95, "value_lam": 1.0}, {"lam": 0.0}],
    gdpo: [
        {"rewards": ["score"]},
        {"rewards": ["score", "form"], "weights": [2.0, -0.5]},
        {"rewards": ["form", "score"], "std": "none"},
    ],
    gpg: [{}, {"f_norm": 3.0}],
    grpo: [{}, {"epsilon": 1e-4}, {"std": "batch"}, {"std": "none"}],
    grpo_passk: [{}, {"std": "none"}],
    grpo_turns: [{}, {"epsilon": 1e-4}, {"std": "none"}],
    opo: [{}],
    optimal_token_baseline: [{}, {"handle_zero_tail": False}],
    prime: [{}, {"normalise": "none"}, {"process_weight": 0.0}, {"outcome_weight": 0.0}],
    reinforce_plus_plus: [{}, {"gamma": 0.5}, {"gamma": 0.0}],
    reinforce_plus_plus_baseline: [{}],
    remax: [{}],
    rloo: [{}],
}
CASES = [(oracle, options) for oracle, given in ORACLES.items() for options in given]


def test_every_estimator_has_an_oracle():
    assert ESTIMATORS.keys() == {oracle.__name__ for oracle in ORACLES}


@pytest.mark.parametrize(("oracle", "options"), CASES)
@settings(max_examples=12)
@given(data=st.data(), owners=owners)
def test_against_loops(oracle, options, data, owners):
    estimator = ESTIMATORS[oracle.__name__](**options)
    drawn = data.draw(rows(several=oracle is grpo_passk))
    # A deviation of 0 but for rounding says nothing.
    assume(options.get("std") != "batch" or len({row.score for row in drawn}) > 1)
    tolerance = 1e-6 if oracle in (gdpo, grpo_turns) else 1e-9
    agrees(estimator, lambda rows: oracle(estimator, rows), drawn, owners, tolerance)


@given(rows(), st.floats(-100, 100) | st.just(math.nan))
def test_tokens_of_the_environment_do_not_matter(rows, noise):
    """Whatever stands between two turns, or behind the response, may as well not be there."""

    def noisy(row, numbers):
        return [x if m else noise for x, m in zip(numbers, row.mask, strict=True)]

    disturbed = [
        replace(row, rewards=noisy(row, row.rewards), values=noisy(row, row.values)) for row in rows
    ]
    counts = torch.tensor([row.mask for row in rows]).bool()
    estimator = ESTIMATORS["gae"](gamma=0.9, lam=0.8)
    pairs = zip(estimator(scored(disturbed)), estimator(scored(rows)), strict=True)
    for actual, expected in pairs:
        torch.testing.assert_close(actual[counts], expected[counts], rtol=0, atol=0)


def test_long_responses():
    """Beyond the reach of one, or of a few, of GAE's passes over them."""
    dice = random.Random(0)
    estimator = ESTIMATORS["gae"](gamma=0.99, lam=0.95)
    for width in (63, 64, 65, 700):
        numbers = [[dice.uniform(-3, 3) for _ in range(width)] for _ in range(6)]
        masks = [[int(dice.random() < share) for _ in range(width)] for share in (1.0, 0.7, 0.0)]
        some = [Row(0, 0.0, numbers[i], masks[i], numbers[i + 3], 0.0) for i in range(3)]
        agrees(estimator, lambda rows: gae(estimator, rows), some, [0, 1, 0])


def test_turns_are_compared_with_the_same_turn_of_the_others():
    """Sessions of three, two and two turns; the second turn earns 1, 0 and 2, the last one 0.5."""
    sessions = [
        Row(0, 1.5, [0, 0, 0, 1, 0, 0.5], [1, 1, 0, 1, 0, 1], [0.0] * 6, 0.0),
        Row(0, 0.0, [0, 0, 0, 0, 0, 0], [1, 0, 1, 1, 0, 0], [0.0] * 6, 0.0),
        Row(0, 2.0, [0, 0, 0, 2, 0, 0], [1, 1, 0, 1, 0, 0], [0.0] * 6, 0.0),
        Row(1, 3.0, [3, 0, 0, 0, 0, 0], [1, 0, 0, 0, 0, 0], [0.0] * 6, 0.0),
    ]
    # From each of the first two turns on the three earn 1.5, 0 and 2: 7/6 on average.
    one, two, three = 1 / 3, -7 / 6, 5 / 6
    expected = [
        [one, one, 0, one, 0, 0],  # no other has a third turn
        [two, 0, two, two, 0, 0],
        [three, three, 0, three, 0, 0],
        [0, 0, 0, 0, 0, 0],  # nothing to compare with
    ]
    advantages = ESTIMATORS["grpo_turns"](std="none")(scored(sessions))
    torch.testing.assert_close(advantages, torch.tensor(expected, dtype=torch.float64))


def test_what_an_estimator_lacks_is_named():
    with pytest.raises(TrainingError, match=r"one response alone.*rollout.num_samples to at least"):
        ESTIMATORS["grpo_passk"]()(simple([1.0, 2.0, 3.0], [0, 0, 1]))
    with pytest.raises(TrainingError, match="rewards: right is not there .* those that are: score"):
        ESTIMATORS["gdpo"](rewards=["right"])(simple([1.0], [0]))
