"""Who sends what to whom when samples change hands: both ends agree, and nothing goes twice."""

import random
from collections import Counter

import pytest

from verl_hpc.step.routes import Origin, Routes


def test_the_example():
    sources, targets = ((0, 1), (2, 3)), ((4, 5, 6, 7),)
    node_of = [0, 0, 0, 0, 1, 1, 1, 1]
    origins = [
        [Routes(rank, node_of, sources, targets).origin(source) for source in (0, 1)]
        for rank in range(4, 8)
    ]
    first = [Origin(1, 0), Origin(5, 1)], [Origin(4, 1), Origin(3, 0)]
    assert origins == [*first, [Origin(4, 1), Origin(5, 1)], [Origin(4, 1), Origin(5, 1)]]
    assert Routes(4, node_of, sources, targets).mates(0) == [5, 6, 7]
    assert Routes(4, node_of, sources, targets).mates(1) == []


def some_groups(dice, ranks):
    """Groups of equal size, made of some of the ranks in any order."""
    chosen = dice.sample(ranks, len(ranks) // 8 * dice.choice([4, 8]))
    width = dice.choice([1, 2, 4])
    return [chosen[i : i + width] for i in range(0, len(chosen), width)]


@pytest.mark.parametrize("seed", range(40))
def test_both_ends_agree_and_each_node_is_entered_once(seed):
    dice = random.Random(seed)
    size = dice.choice([8, 16, 24])
    node_of = [dice.randrange(4) for _ in range(size)]
    sources, targets = some_groups(dice, range(size)), some_groups(dice, range(size))
    routes = [Routes(rank, node_of, sources, targets) for rank in range(size)]
    told = {
        (source, target, rank): routes[rank].origin(source)
        for source, holders in enumerate(sources)
        for target, ranks in enumerate(targets)
        for rank in ranks
        if rank not in holders
    }
    sent = {
        (source, target, receiver): Origin(rank, 0)
        for source, holders in enumerate(sources)
        for rank in holders
        for target in range(len(targets))
        for receiver in routes[rank].receivers(target)
    }
    for source, holders in enumerate(sources):
        for target, ranks in enumerate(targets):
            for rank in ranks:
                for mate in routes[rank].mates(source) if rank not in holders else ():
                    assert (source, target, mate) not in sent
                    sent[source, target, mate] = Origin(rank, 1)
    assert sent == told
    entered = Counter(
        (source, target, node_of[rank])
        for (source, target, rank), origin in told.items()
        if node_of[origin.rank] != node_of[rank]
    )
    assert set(entered.values()) <= {1}
    for source, _, node in entered:
        assert node not in {node_of[rank] for rank in sources[source]}
