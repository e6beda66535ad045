"""Every advantage and every loss on four ranks, in micro-batches, is what it is on one."""

import pytest
import torch

from verl_hpc.algorithms import advantages, losses
from verl_hpc.algorithms.advantage import Advantage, Scored
from verl_hpc.algorithms.aggregation import Aggregation
from verl_hpc.algorithms.choices import members
from verl_hpc.algorithms.loss import PolicyLoss, StepTokens, Tokens

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


def scored(rows, reduce):
    scores = numbers(5)[:, 0].double()
    scores[:GROUP] = 1.0
    return Scored(
        scores,
        torch.arange(ROWS) // GROUP,
        torch.tensor(rows, dtype=torch.int64),
        MASK[rows],
        numbers(6)[rows],
        values=numbers(7)[rows],
        greedy=numbers(8)[:, 0].double(),
        log_probs=OLD[rows],
        sum_p_squared=numbers(9)[rows].sigmoid(),
        process_rewards=numbers(10)[rows],
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
    estimator = members(advantages, Advantage)[name]()
    whole = scored(list(range(ROWS)), lambda tensor: tensor)
    part = scored(mine, summed(here))

    def of_tokens(batch):
        found = estimator(batch)
        found = found if isinstance(found, tuple) else (found,)
        return [batch.of_tokens(f) if f.dim() == 1 else f for f in found]

    for found, expected in zip(of_tokens(part), of_tokens(whole), strict=True):
        close(found, expected[mine])


@pytest.mark.parametrize("name", sorted(members(losses, PolicyLoss)))
def test_a_loss_and_its_gradient_add_up(here, mine, name):
    loss = members(losses, PolicyLoss)[name]()
    aggregation = Aggregation(loss.aggregation, int(MASK.sum()), int((MASK.sum(-1) > 0).sum()))

    def share(rows, reduce, micro_batches):
        """This part's loss and gradient, summed over its micro-batches."""
        selected = torch.zeros(len(rows), WIDTH, dtype=torch.bool)
        if loss.selects:
            step = (OLD[rows], ADVANTAGES[rows], MASK[rows], RANDOM[rows])
            selected = loss.select(StepTokens(*step, reduce))
        new, total = NEW[rows].clone().requires_grad_(), torch.zeros(())
        for first in range(micro_batches):
            some = slice(first, None, micro_batches)
            given = (OLD[rows][some], new[some], ADVANTAGES[rows][some], MASK[rows][some])
            values, _ = loss(Tokens(*given, selected[some]))
            total = total + aggregation(values, MASK[rows][some])
        total.backward()
        return total.detach(), new.grad

    expected, gradient = share(list(range(ROWS)), lambda tensor: tensor, 1)
    found, mine_gradient = share(mine, summed(here), 3)
    close(summed(here)(found), expected)
    close(mine_gradient, gradient[mine])
