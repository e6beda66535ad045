"""Placements of a run, and what their ranks do."""

from verl_hpc.runs.ranks import Placed, Progress, Ranks, described

TRAIN = Placed("train", 0, 2, ("actor", "reference"))
ROLLOUT = Placed("rollout", 3, 3, ("rollout",))


def ranks(*operators):
    rows = tuple(Progress(i, 5, name, 1.0) for i, name in enumerate(operators))
    return Ranks(100.0, 10.0, 120.0, None, rows)


def test_what_the_ranks_of_a_placement_do():
    who = "ranks 0-2 (actor, reference)"
    assert described(TRAIN, None) == who
    assert described(TRAIN, ranks("wait", "wait", "wait", "rollout")) == f"{who}: wait"
    assert described(TRAIN, ranks("a", "b", "b", "rollout")) == f"{who}: b on 1-2; a on 0"


def test_each_placement_has_its_own_ranks_and_one_that_is_silent_is_not_where_it_was():
    all_ranks = ranks("a", "a", "a", "rollout")
    assert described(ROLLOUT, all_ranks) == "rank 3 (rollout): rollout"
    assert ROLLOUT.operators(all_ranks) == {"rollout": [3]}
    rows = (*ranks("b", "b").ranks, Progress(2, 1, "a", 90.0, silent_s=31.0))
    found = Ranks(100.0, 10.0, 120.0, None, rows)
    assert described(TRAIN, found) == "ranks 0-2 (actor, reference): b on 0-1; silent on 2"
