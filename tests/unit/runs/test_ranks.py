"""ranks.json, and who is late by it."""

import pytest

from verl_hpc.runs.ranks import Progress, Ranks, last_wrote, late_ranks, read_ranks, write_ranks


def at(rank, num_waits, waited_s=0.0, seconds=300.0, count=7):
    return Progress(rank, count, "reward", seconds, "n0", num_waits=num_waits, waited_s=waited_s)


def test_a_rank_that_others_have_long_waited_for_is_late_in_the_same_operator():
    progress = [at(0, 20, 130), at(1, 19), at(2, 20, 131), at(3, 18)]
    assert [p.rank for p in late_ranks(progress, 120)] == [3, 1]
    # A short wait makes nobody late, nor does a wait in the same place.
    assert late_ranks([at(0, 20, 3.0), at(1, 19)], 120) == []
    assert late_ranks([at(0, 20, 500), at(1, 20, 500)], 120) == []


def test_a_rank_that_has_not_told_of_its_next_operator_yet_is_not_late():
    fields = {"operator": "reward", "seconds": 300.0, "silent_s": 9.0}
    quiet = Progress(0, 7, **fields)
    assert late_ranks([quiet, Progress(1, 8, "update_actor", 8.0)], 120) == []
    assert late_ranks([quiet, Progress(1, 8, "update_actor", 10.0)], 120) == [quiet]


def placed(rank, places, count, operator, **fields):
    return Progress(rank, count, operator, 300.0, "n0", num_waits=9, places=places, **fields)


def test_what_ranks_wrote_of_themselves_is_told_as_what_was():
    assert last_wrote(["reward"], "40 s") == "last wrote, 40 s ago, that it was in reward"
    both = last_wrote(["reward", "critic", "reward"], "2m 03s")
    assert both == "last wrote, 2m 03s ago, that they were in critic, reward"


def test_a_rank_that_another_placement_waits_for_is_late():
    """Rank 2 waits for the reward of rank 1, who waits for rank 0. Placements enter different
    numbers of operators, which makes nobody late."""
    progress = [placed(0, "actor", 80, "update_actor"), placed(1, "critic", 44, "update_critic")]
    assert late_ranks(progress, 120) == []
    progress = [
        placed(0, "actor, rollout", 80, "rollout"),
        placed(1, "reward", 30, "rollout to reward", waited_s=290.0, waits_for="0-1"),
        placed(2, "critic", 44, "reward to critic", waited_s=290.0, waits_for="1-2"),
        placed(3, "reference", 20, "reference"),
    ]
    assert [p.rank for p in late_ranks(progress, 120)] == [0]


@pytest.mark.parametrize(("usual", "late"), [(160.0, []), (140.0, [0])])
def test_what_has_always_taken_long_is_awaited_for_longer(usual, late):
    progress = [
        placed(0, "rollout", 80, "rollout", usual_s=usual),
        placed(1, "train", 30, "rollout to train", waited_s=290.0, waits_for="0-1"),
    ]
    assert [p.rank for p in late_ranks(progress, 120)] == late


def test_what_is_written_is_read(tmp_path):
    where = ("n0", 11, 4, 0.5, "0, 2-3", 40.0, "actor", 0.1)
    late = Progress(1, 2, "reshard", 200.0, "n1", 12, places="actor")
    both = (Progress(0, 3, "rollout", 1.5, *where), late)
    ranks = Ranks(100.0, 10.0, 120.0, "4711", both)
    write_ranks(tmp_path, ranks)
    assert read_ranks(tmp_path) == ranks
    assert [p.rank for p in ranks.late] == [1]
