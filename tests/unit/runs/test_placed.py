"""Placements of a run, and what their ranks do."""

import pytest

from verl_hpc.runs.ranks import Placed, Progress, Ranks, described

TRAIN = Placed("train", 0, 2, ("actor", "reference"))
ROLLOUT = Placed("rollout", 3, 3, ("rollout",))


def ranks(*operators):
    rows = tuple(Progress(i, 5, name, 1.0) for i, name in enumerate(operators))
    return Ranks(100.0, 10.0, 120.0, None, rows)


@pytest.mark.parametrize(
    ("operators", "told"),
    [
        (("wait",) * 3, "ranks 0-2 (actor, reference): wait"),
        (("a", "b", "b"), "ranks 0-2 (actor, reference): b on 1-2; a on 0"),
        ((), "ranks 0-2 (actor, reference)"),
    ],
)
def test_what_the_ranks_of_a_placement_do(operators, told):
    assert described(TRAIN, ranks(*operators, "rollout") if operators else None) == told


def test_each_placement_has_its_own_ranks():
    all_ranks = ranks("a", "a", "a", "rollout")
    assert described(ROLLOUT, all_ranks) == "rank 3 (rollout): rollout"
    assert ROLLOUT.operators(all_ranks) == {"rollout": [3]}


def test_a_rank_that_has_fallen_silent_is_not_where_it_was():
    rows = (*ranks("b", "b").ranks, Progress(2, 1, "a", 90.0, silent_s=31.0))
    found = Ranks(100.0, 10.0, 120.0, None, rows)
    assert described(TRAIN, found) == "ranks 0-2 (actor, reference): b on 0-1; silent on 2"
