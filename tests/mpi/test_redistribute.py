"""Samples travel between placements and arrive whole, in order, on every rank that needs them."""

import random

import pytest
import torch

from verl_hpc.step.batch import (
    COLUMNS,
    ROLLOUT_LOG_PROBS,
    TEACHER_TOP_TOKENS,
    TOKENS,
    Columns,
    Sample,
    Samples,
)
from verl_hpc.step.redistribute import redistribute

pytestmark = pytest.mark.world(4)

MOVED = (TOKENS, ROLLOUT_LOG_PROBS, TEACHER_TOP_TOKENS)
WIDTH = 3
"""Columns of the last of them."""
PLACEMENTS = {
    "each alone": ((0,), (1,), (2,), (3,)),
    "neighbours": ((0, 1), (2, 3)),
    "interleaved": ((0, 2), (1, 3)),
    "everybody": ((0, 1, 2, 3),),
    "first half": ((0,), (1,)),
    "second half": ((2, 3),),
}


def some_samples(seed, placements):
    """Samples of all lengths, some of them with an empty response, some groups without any."""
    dice = random.Random(seed)
    samples = tuple(
        Sample(i, i // 2, dice.randint(1, 9), dice.choice([0, 0, 1, 5, 17]), False)
        for i in range(dice.choice([1, 2, 13]))
    )
    owners = {
        name: [dice.randrange(len(groups)) for _ in samples] for name, groups in placements.items()
    }
    return Samples(samples, owners)


def value(sample, column):
    """The value of a column for a sample, made of its number alone."""
    if column == TOKENS:
        return torch.arange(sample.length) + 1000 * sample.index
    if column == TEACHER_TOP_TOKENS:
        numbers = torch.arange(sample.response_length * WIDTH, dtype=torch.int32)
        return (numbers + 1000 * sample.index).view(-1, WIDTH)
    return torch.arange(sample.response_length) / 7 - sample.index


@pytest.mark.parametrize("source", PLACEMENTS)
@pytest.mark.parametrize("target", PLACEMENTS)
def test_every_pair_of_placements(here, source, target):
    for seed in range(3):
        they_arrive(here, source, target, seed)


def they_arrive(here, source, target, seed):
    samples = some_samples(seed, PLACEMENTS)
    rank = here.world.rank

    def positions(placement):
        groups = PLACEMENTS[placement]
        mine = [i for i, ranks in enumerate(groups) if rank in ranks]
        return samples.owned_by(placement, mine[0]) if mine else []

    held = positions(source)
    values = {n: [value(samples.samples[i], n) for i in held] for n in MOVED}
    columns = Columns(held, values, {TEACHER_TOP_TOKENS: WIDTH})
    moved = redistribute(
        here.world,
        here.control,
        samples,
        columns,
        (source, PLACEMENTS[source]),
        (target, PLACEMENTS[target]),
        torch.device("cpu"),
    )
    assert list(moved.positions) == positions(target)
    assert set(moved.values) == set(MOVED)
    for name in MOVED:
        assert len(moved[name]) == len(moved.positions)
        for i, arrived in zip(moved.positions, moved[name], strict=True):
            assert arrived.dtype == COLUMNS[name].dtype
            assert torch.equal(arrived, value(samples.samples[i], name)), (i, name)
