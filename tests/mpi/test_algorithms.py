"""Every algorithm on four ranks, in micro-batches, is what it is on one."""

import json
from typing import get_args

import pytest
import torch

from verl_hpc.algorithms import advantages, losses, preferences
from verl_hpc.algorithms.advantage import Advantage, Scored
from verl_hpc.algorithms.aggregation import Aggregation, Mode
from verl_hpc.algorithms.choices import members
from verl_hpc.algorithms.correction import CorrectionConfig, correct
from verl_hpc.algorithms.distillation import forward_kl
from verl_hpc.algorithms.kl import Estimator, kl_penalty
from verl_hpc.algorithms.loss import PolicyLoss, StepTokens, Tokens
from verl_hpc.algorithms.off_policy import off_policy
from verl_hpc.algorithms.preference import PreferenceLoss, answers_of
from verl_hpc.algorithms.process_reward import outcome_cross_entropy
from verl_hpc.algorithms.value_loss import clipped_value_loss

pytestmark = pytest.mark.world(4)

ROWS, WIDTH, GROUP = 24, 9, 4
EXTREME = 30.0


def numbers(seed, scale=1.0):
    generator = torch.Generator().manual_seed(seed)
    return scale * torch.randn(ROWS, WIDTH, generator=generator)


MASK = (numbers(0) > -0.8).float()
MASK[5] = 0
OLD = -numbers(1).abs() - 0.1
NEW = OLD + numbers(2, 0.5)
NEW[7, 3] = OLD[7, 3] - EXTREME
ADVANTAGES = numbers(3)
RANDOM = numbers(4).double().abs()
NEEDED = {"gdpo": {"rewards": ["form", "score"]}, "dro": {"beta": 0.5}}
"""Settings without a default."""


def scored(rows, reduce):
    scores = numbers(5)[:, 0].double()
    scores[:GROUP] = 1.0
    return Scored(
        scores,
        torch.arange(ROWS) // GROUP,
        torch.tensor(rows, dtype=torch.int64),
        lambda: (MASK[rows], numbers(6)[rows]),
        values=numbers(7)[rows],
        greedy=numbers(8)[:, 0].double(),
        log_probs=OLD[rows],
        sum_p_squared=numbers(9)[rows].sigmoid(),
        process_rewards=numbers(10)[rows],
        components={"form": numbers(11)[:, 0].double(), "score": scores},
        reduce=reduce,
    )


@pytest.fixture
def mine(here):
    """Unequal shares; the third rank has nothing."""
    owner = [(0, 0, 1, 3, 3, 3)[i % 6] for i in range(ROWS)]
    return [i for i in range(ROWS) if owner[i] == here.world.rank]


def summed(here):
    return lambda tensor: sum(here.control.allgather(tensor))


def close(found, expected):
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", sorted(members(advantages, Advantage)))
def test_an_advantage_does_not_depend_on_who_has_what(here, mine, name):
    estimator = members(advantages, Advantage)[name](**NEEDED.get(name, {}))
    whole = scored(list(range(ROWS)), lambda tensor: tensor)
    part = scored(mine, summed(here))

    def of_tokens(batch):
        estimates = estimator(batch)
        estimates = estimates if isinstance(estimates, tuple) else (estimates,)
        return [batch.of_tokens(f) if f.dim() == 1 else f for f in estimates]

    for estimates, expected in zip(of_tokens(part), of_tokens(whole), strict=True):
        close(estimates, expected[mine])


def assert_adds_up(here, mine, share, count=ROWS):
    """
    Args:
        mine: which of `count` rows are here.
        share: of (rows, reduction, number of micro-batches), the part of the loss and the gradient
            of those rows.
    """
    expected, gradient = share(list(range(count)), lambda tensor: tensor, 1)
    part, mine_gradient = share(mine, summed(here), 3)
    close(summed(here)(part), expected)
    close(mine_gradient, gradient[mine])
    assert gradient.abs().max() > 0


def in_micro_batches(leaves, num_micro_batches, loss):
    """(sum, gradient) of `loss` over every n-th of the leaves.

    Args:
        leaves: first dim what is dealt to micro-batches.
        loss: of leaves of a micro-batch, and a slice that selects them.
    """
    leaf, total = leaves.clone().requires_grad_(), torch.zeros((), dtype=leaves.dtype)
    for first in range(num_micro_batches):
        some = slice(first, None, num_micro_batches)
        total = total + loss(leaf[some], some)
    total.backward()
    return total.detach(), leaf.grad


NUM_SEQUENCES = int((MASK.sum(-1) > 0).sum())


@pytest.mark.parametrize("name", sorted(members(losses, PolicyLoss)))
def test_a_loss_and_its_gradient_add_up(here, mine, name):
    loss = members(losses, PolicyLoss)[name](**NEEDED.get(name, {}))
    aggregation = Aggregation(loss.aggregation, int(MASK.sum()), NUM_SEQUENCES)

    def share(rows, reduce, num_micro_batches):
        mask = MASK[rows]
        selected = torch.zeros(len(rows), WIDTH, dtype=torch.bool)
        if loss.selects:
            step = (OLD[rows], ADVANTAGES[rows], mask, RANDOM[rows])
            selected = loss.select(StepTokens(*step, reduce))

        def of(new, some):
            given = (OLD[rows][some], new, ADVANTAGES[rows][some], mask[some], selected[some])
            return aggregation(loss(Tokens(*given))[0], mask[some])

        return in_micro_batches(NEW[rows], num_micro_batches, of)

    assert_adds_up(here, mine, share)


LOGITS = torch.linspace(-2, 3, 5)


def top_3(tokens):
    """Log-probs of three of five tokens, (..., 3), that depend on a number each."""
    return (tokens[..., None] * LOGITS).log_softmax(-1)[..., 2:]


# Losses of tokens, from what is differentiable and what is not.
OF_TOKENS = {
    "value": lambda new, old, others: clipped_value_loss(new, old, others, others, None)[0],
    "clipped value": lambda new, old, others: clipped_value_loss(new, old, others, old, 0.5)[0],
    "forward_kl": lambda new, old, others: forward_kl(top_3(old), top_3(new)),
    **{f"kl {name}": lambda new, old, others, name=name: kl_penalty(new, old, name)
       for name in get_args(Estimator)},
}  # fmt: skip


@pytest.mark.parametrize("mode", get_args(Mode))
@pytest.mark.parametrize("name", OF_TOKENS)
def test_what_is_added_to_a_loss_adds_up(here, mine, name, mode):
    aggregation = Aggregation(mode, int(MASK.sum()), NUM_SEQUENCES, scale=7.0)

    def share(rows, _, num_micro_batches):
        def of(new, some):
            values = OF_TOKENS[name](new, OLD[rows][some], ADVANTAGES[rows][some])
            return aggregation(values, MASK[rows][some])

        return in_micro_batches(NEW[rows], num_micro_batches, of)

    assert_adds_up(here, mine, share)


def test_outcomes_of_responses_add_up(here, mine):
    outcomes = numbers(5)[:, 0].sigmoid()

    def share(rows, _, num_micro_batches):
        def of(new, some):
            rewards = answers_of(new, MASK[rows][some], OLD[rows][some]).log_ratios
            return outcome_cross_entropy(rewards, outcomes[rows][some]).sum() / ROWS

        return in_micro_batches(NEW[rows].double(), num_micro_batches, of)

    assert_adds_up(here, mine, share)


@pytest.fixture
def my_pairs(mine):
    """The pairs of neighbours whose chosen answer is here."""
    return [row // 2 for row in mine if row % 2 == 0]


@pytest.mark.parametrize("name", sorted(members(preferences, PreferenceLoss)))
def test_a_loss_of_pairs_adds_up(here, my_pairs, name):
    loss = members(preferences, PreferenceLoss)[name]()
    new, old, mask = (x.unflatten(0, (-1, 2)) for x in (NEW.double(), OLD, MASK))

    def share(pairs, _, num_micro_batches):
        def of(policy, some):
            given = (policy, mask[pairs][some], old[pairs][some])
            answers = answers_of(*(x.flatten(0, 1) for x in given))
            return loss(*answers.pairs()).sum() / len(new)

        return in_micro_batches(new[pairs], num_micro_batches, of)

    assert_adds_up(here, my_pairs, share, len(new))


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"weights": "sequence", "normalise": True},
        {"outside": "leave_out", "lower": 0.7, "upper": 1.5, "normalise": True},
        {"weights": "none", "reject": {"lower": 0.9, "upper": 1.2}},
        {"reject": {"ratio": "product", "lower": 0.2, "upper": 3.0}},
    ],
)
def test_a_correction_does_not_depend_on_who_has_what(here, mine, given):
    config = CorrectionConfig(**given)
    whole = correct(config, NEW, OLD, MASK)
    part = correct(config, NEW[mine], OLD[mine], MASK[mine], summed(here))
    close(part.weights, whole.weights[mine])
    assert torch.equal(part.mask, whole.mask[mine])
    assert part.metrics == pytest.approx(whole.metrics, rel=1e-5, abs=1e-5)
    assert set(here.control.allgather(json.dumps(part.metrics))) == {json.dumps(part.metrics)}


def test_statistics_of_two_policies_do_not_depend_on_who_has_what(here, mine):
    whole = off_policy(NEW, OLD, MASK)
    part = off_policy(NEW[mine], OLD[mine], MASK[mine], summed(here))
    assert part == pytest.approx(whole, rel=1e-5)
    assert all(value not in (0.0, 1.0) for value in whole.values())
