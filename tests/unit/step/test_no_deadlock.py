"""Moving rows to another placement completes though no message is kept on its way.

Rows go through the control plane's channel, MPI or gloo, in two exchanges. A rank posts all
messages of an exchange together and leaves it when all are done.
"""

import random
from itertools import permutations
from types import SimpleNamespace

import pytest
import torch

from tests.slow import mostly_slow
from tests.unit import shipped
from tests.unit.transfer.blocking import Launch, Wait, faults
from verl_hpc.layout.grid import nodes_of
from verl_hpc.step.batch import MASK, TOKENS, Columns, Sample, Samples
from verl_hpc.step.redistribute import redistribute

CPU = torch.device("cpu")


def programs(source, target, node_of, dice):
    """What every rank posts when samples of random lengths move between groups of ranks."""
    count = 2 * max(len(source), len(target))
    groups = {"source": source, "target": target}
    samples = Samples(
        tuple(Sample(i, i, dice.randint(1, 4), dice.randint(0, 4), False) for i in range(count)),
        {side: [dice.randrange(len(of)) for _ in range(count)] for side, of in groups.items()},
    )
    return {
        rank: program(rank, samples, groups, node_of)
        for rank in sorted({rank for of in groups.values() for ranks in of for rank in ranks})
    }


def program(rank, samples, groups, node_of):
    posted = []

    def exchange(sends, receives):
        sizes = ([(peer, data.nbytes) for peer, data in side] for side in (sends, receives))
        posted.extend((Launch(*sizes), Wait()))

    mine = next((i for i, ranks in enumerate(groups["source"]) if rank in ranks), None)
    positions = [] if mine is None else samples.owned_by("source", mine)
    lengths = [samples.samples[i] for i in positions]
    values = {
        TOKENS: [torch.zeros(sample.length, dtype=torch.int64) for sample in lengths],
        MASK: [torch.zeros(sample.response_length, dtype=torch.uint8) for sample in lengths],
    }
    world, control = SimpleNamespace(rank=rank, node_of=node_of), SimpleNamespace(exchange=exchange)
    redistribute(world, control, samples, Columns(positions, values), *groups.items(), CPU)
    return posted


@pytest.mark.parametrize("name", shipped.FILES)
def test_shipped_configurations(name):
    _, _, layouts, hardware = shipped.laid_out(name)
    dice = random.Random(0)
    node_of = nodes_of(layouts.num_ranks, hardware.ranks_per_node)
    for source, target in permutations((pool.groups for pool in layouts.pools.values()), 2):
        assert faults(programs(source, target, node_of, dice)) == []


def some_groups(dice, num_ranks):
    """Groups of neighbours of one size, or of ranks that lie apart, on some of the ranks."""
    width = dice.choice([n for n in (1, 2, 4, 8, 16) if num_ranks % n == 0])
    first = dice.choice([0, num_ranks // 2]) if num_ranks // 2 % width == 0 else 0
    ranks = range(first, num_ranks)
    if dice.random() < 0.5:
        return [tuple(ranks[i : i + width]) for i in range(0, len(ranks), width)]
    num_groups = len(ranks) // width
    return [tuple(ranks[i::num_groups]) for i in range(num_groups)]


NUMBERS, OFTEN = range(200), 20


@pytest.mark.parametrize("number", mostly_slow(NUMBERS, OFTEN))
def test_random_placements(number):
    dice = random.Random(number)
    num_ranks = dice.choice([2, 6, 8, 16, 48, 64, *([] if number % OFTEN == 0 else [256, 512])])
    source, target = some_groups(dice, num_ranks), some_groups(dice, num_ranks)
    node_of = nodes_of(num_ranks, dice.choice([2, 4, 8]))
    of_ranks = programs(source, target, node_of, dice)
    assert faults(of_ranks) == []


def test_an_exchange_left_out_by_one_rank_hangs():
    """Shows that the tests above could fail."""
    good = programs([(0, 1), (2, 3)], [(0, 2), (1, 3)], (0, 0, 1, 1), random.Random(0))
    assert faults(good) == []
    busy = next(rank for rank, of in good.items() if of[0].sends)
    assert faults({**good, busy: good[busy][2:]}) != []
