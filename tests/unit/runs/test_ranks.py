"""ranks.json, and who is late by it."""

import pytest

from verl_hpc.runs.ranks import FILE, Progress, Ranks, late_ranks, read_ranks, shown, write_ranks


def at(rank, num_waits, waited_s=0.0, seconds=300.0, count=7):
    return Progress(rank, count, "reward", seconds, "n0", num_waits=num_waits, waited_s=waited_s)


def test_a_rank_that_others_have_long_waited_for_is_late_in_the_same_operator():
    progress = [at(0, 20, 130), at(1, 19), at(2, 20, 131), at(3, 18)]
    assert [p.rank for p in late_ranks(progress, 120)] == [3, 1]


def test_a_short_wait_makes_nobody_late_however_long_the_operator_takes():
    assert late_ranks([at(0, 20, 3.0), at(1, 19)], 120) == []


def test_ranks_that_wait_in_the_same_place_wait_for_something_else():
    assert late_ranks([at(0, 20, 500), at(1, 20, 500)], 120) == []


def test_what_is_written_is_read(tmp_path):
    first = Progress(0, 3, "rollout", 1.5, "n0", 11, 4, 0.5, 0.1, (("reshard", 9.25),))
    ranks = Ranks(100.0, 10.0, 120.0, "4711", (first, Progress(1, 2, "reshard", 200.0, "n1", 12)))
    write_ranks(tmp_path, ranks)
    assert read_ranks(tmp_path) == ranks
    assert [p.rank for p in ranks.late] == [1]


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"time": 1, "ranks": [[1]]}', "\xff"])
def test_what_cannot_be_read_is_nothing(tmp_path, text):
    assert read_ranks(tmp_path) is None
    (tmp_path / FILE).write_text(text)
    assert read_ranks(tmp_path) is None


@pytest.mark.parametrize(
    ("numbers", "text"), [([], ""), ([3], "3"), ([5, 0, 1, 2], "0-2, 5"), ([1, 3, 4], "1, 3-4")]
)
def test_ranks_in_short(numbers, text):
    assert shown(numbers) == text
