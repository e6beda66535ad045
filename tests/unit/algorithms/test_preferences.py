"""Losses of pairs, of single answers and of scores against their formulas, one by one."""

import math
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.algorithms.batches import agree, masks, numbers
from verl_hpc.algorithms import preferences
from verl_hpc.algorithms.choices import members
from verl_hpc.algorithms.kto import Kto, reference_point
from verl_hpc.algorithms.preference import Answers, PreferenceLoss, answers_of, bradley_terry

LOSSES = members(preferences, PreferenceLoss)


@dataclass(frozen=True)
class Answer:
    """Sums over the tokens of an answer that count; `policy` is differentiable."""

    policy: torch.Tensor
    reference: float
    length: int

    @property
    def ratio(self):
        return self.policy - self.reference

    @property
    def mean(self):
        return self.policy / max(self.length, 1)


def log_sigmoid(x):
    """log(1 / (1 + exp(-x))), by its two halves."""
    if float(x) > 0:
        return -torch.log1p(torch.exp(-x))
    return x - torch.log1p(torch.exp(x))


def sigmoid(x):
    return torch.exp(log_sigmoid(x))


def difference(loss, c, r):
    return loss.beta * (c.ratio - r.ratio)


def dpo(loss, c, r):
    h, e = difference(loss, c, r), loss.label_smoothing
    return -(1 - e) * log_sigmoid(h) - e * log_sigmoid(-h)


def robust(loss, c, r):
    h, e = difference(loss, c, r), loss.label_smoothing
    return ((1 - e) * -log_sigmoid(h) - e * -log_sigmoid(-h)) / (1 - 2 * e)


def ipo(loss, c, r):
    return (c.ratio / max(c.length, 1) - r.ratio / max(r.length, 1) - 0.5 / loss.beta) ** 2


def hinge(loss, c, r):
    short = 1 - difference(loss, c, r)
    return short if float(short) > 0 else 0 * short


def exo(loss, c, r):
    h, e = difference(loss, c, r), loss.label_smoothing
    found = 0.0
    for of_model, of_data in ((log_sigmoid(h), 1 - e), (log_sigmoid(-h), e)):
        found = found + torch.exp(of_model) * (of_model - math.log(of_data))
    return found


def nca(loss, c, r):
    better, worse = loss.beta * c.ratio, loss.beta * r.ratio
    return -log_sigmoid(better) - (log_sigmoid(-better) + log_sigmoid(-worse)) / 2


def sppo(loss, c, r):
    return (c.ratio - 0.5 / loss.beta) ** 2 + (r.ratio + 0.5 / loss.beta) ** 2


def apo(loss, c, r):
    better, worse = loss.beta * c.ratio, loss.beta * r.ratio
    if loss.anchor == "zero":
        return sigmoid(-better) + sigmoid(worse)
    return sigmoid(better) + sigmoid(-(better - worse))


def dpop(loss, c, r):
    lost = -c.ratio if float(c.ratio) < 0 else 0 * c.ratio
    return -log_sigmoid(loss.beta * (c.ratio - r.ratio - loss.penalty * lost))


def simpo(loss, c, r):
    return -log_sigmoid(loss.beta * c.mean - loss.beta * r.mean - loss.gamma)


def cpo(loss, c, r):
    return -log_sigmoid(loss.beta * (c.policy - r.policy))


def orpo(loss, c, r):
    def odds(mean):
        known = mean if float(mean) < -1e-7 else torch.tensor(-1e-7, dtype=torch.float64)
        return known - torch.log(-torch.expm1(known))

    return -loss.beta * log_sigmoid(odds(c.mean) - odds(r.mean))


ORACLES = {
    "dpo": (dpo, [{}, {"beta": 0.5, "label_smoothing": 0.2}, {"label_smoothing": 0.5}]),
    "robust": (robust, [{}, {"label_smoothing": 0.0}, {"beta": 1.0, "label_smoothing": 0.49}]),
    "ipo": (ipo, [{}, {"beta": 2.0}]),
    "hinge": (hinge, [{}, {"beta": 3.0}]),
    "exo": (exo, [{}, {"beta": 0.7, "label_smoothing": 0.3}]),
    "nca": (nca, [{}, {"beta": 1.5}]),
    "sppo": (sppo, [{}, {"beta": 1e-2}]),
    "apo": (apo, [{}, {"anchor": "down", "beta": 0.5}]),
    "dpop": (dpop, [{}, {"penalty": 0.0}, {"penalty": 5.0, "beta": 0.3}]),
    "simpo": (simpo, [{}, {"gamma": 0.0}, {"beta": 10.0, "gamma": 5.0}]),
    "cpo": (cpo, [{}, {"beta": 0.5}]),
    "orpo": (orpo, [{}, {"beta": 1.0}]),
}


CASES = [(name, options) for name, (_, given) in ORACLES.items() for options in given]


def test_every_loss_has_an_oracle():
    assert LOSSES.keys() == ORACLES.keys()


@st.composite
def pairs(draw):
    """(policy, reference, mask), (2 B, T) float64 each: neighbours are chosen and rejected. One in
    four batches has answers that are far more, or far less, likely than under the reference."""
    shape = 2 * draw(st.integers(1, 3)), draw(st.integers(1, 6))
    reference = draw(numbers(shape, -4.0, -0.1))
    distance = draw(numbers(shape, -1.0, 1.0)) * draw(st.sampled_from([0.01, 1.0, 1.0, 150.0]))
    return (reference + distance).clamp(max=-1e-3), reference, draw(masks(shape))


@pytest.mark.parametrize(("name", "options"), CASES)
@settings(max_examples=20)
@given(batch=pairs())
def test_losses_and_gradients_of_every_pair(name, options, batch):
    loss, (oracle, _) = LOSSES[name](**options), ORACLES[name]
    policy, reference, mask = batch
    width = mask.shape[1]

    def ours(policy):
        given = None if loss.reference_free else reference
        return loss(*answers_of(policy, mask, given).pairs())

    def theirs(leaves):
        answers = []
        for i, row in enumerate(mask):
            places = [t for t in range(width) if row[t]]
            total = sum((leaves[i * width + t] for t in places), torch.zeros(()).double())
            answers.append(Answer(total, sum(float(reference[i, t]) for t in places), len(places)))
        both = zip(answers[::2], answers[1::2], strict=True)
        return [oracle(loss, chosen, rejected) for chosen, rejected in both]

    agree(ours, theirs, policy)


def answers(policy, reference, lengths):
    given = (policy, lengths, reference)
    return Answers(*(torch.tensor(x, dtype=torch.float64) for x in given))


@pytest.mark.parametrize("name", sorted(LOSSES))
def test_rewards_are_higher_for_what_became_likelier(name):
    loss = LOSSES[name]()
    rewards = loss.rewards(answers([-8.0, -2.0], [-5.0, -5.0], [4.0, 4.0]))
    assert rewards[0] < rewards[1]
    expected = {"simpo": [-2.0, -0.5], "orpo": [-2.0, -0.5], "cpo": [-8.0, -2.0]}
    assert rewards.tolist() == pytest.approx(
        [loss.beta * x for x in expected.get(name, [-3.0, 3.0])]
    )


def test_sums_leave_out_what_does_not_count():
    policy = torch.tensor([[-1.0, math.nan, -2.0], [-math.inf, -3.0, math.nan]])
    found = answers_of(policy, torch.tensor([[1, 0, 1], [0, 1, 0]], dtype=torch.uint8), policy - 1)
    assert (found.log_probs.tolist(), found.log_ratios.tolist()) == ([-3.0, -3.0], [2.0, 1.0])
    assert found.mean_log_probs.tolist() == [-1.5, -3.0]
    assert found.log_probs.dtype == torch.float64


# Answers that are good or bad, each by itself.


@given(
    st.integers(0, 5),
    st.sampled_from([{}, {"beta": 1.0, "desirable_weight": 1.33}, {"undesirable_weight": 0.0}]),
    st.sampled_from([0.0, 0.4, 200.0]),
    st.sampled_from([1.0, 100.0]),
    st.data(),
)
def test_kto(count, options, kl, reach, data):
    loss, ratios = Kto(**options), reach * data.draw(numbers((count,)))
    kinds = torch.tensor(data.draw(st.lists(st.booleans(), min_size=count, max_size=count))).bool()

    def oracle(ratio, desirable):
        if desirable:
            return loss.desirable_weight * (1 - sigmoid(loss.beta * (ratio - kl)))
        return loss.undesirable_weight * (1 - sigmoid(loss.beta * (kl - ratio)))

    def theirs(leaves):
        return [oracle(*pair) for pair in zip(leaves, kinds.tolist(), strict=True)]

    agree(lambda ratios: loss(ratios, kinds, torch.tensor(kl, dtype=torch.float64)), theirs, ratios)


def test_the_reference_point_is_no_less_than_nothing():
    assert [reference_point(torch.tensor(x)).item() for x in (-0.5, 0.0, 2.0)] == [0.0, 0.0, 2.0]


# Scores of a reward model.


@given(st.integers(0, 5), st.sampled_from([1.0, 3.0, 100.0]), st.data())
def test_bradley_terry(count, reach, data):
    def theirs(leaves):
        both = zip(leaves[:count], leaves[count:], strict=True)
        return [-log_sigmoid(chosen - rejected) for chosen, rejected in both]

    agree(lambda both: bradley_terry(*both), theirs, reach * data.draw(numbers((2, count))))
