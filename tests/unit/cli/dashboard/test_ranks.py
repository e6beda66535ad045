"""Lanes of the ranks."""

from verl_hpc.cli.dashboard.parts import ranks_part
from verl_hpc.runs.ranks import Progress, Ranks, write_ranks

NOW = 1000.0


def part(directory, *ranks):
    write_ranks(directory, Ranks(NOW, 10.0, 120.0, None, ranks))
    return ranks_part(directory, {})


def at(rank, *history, **fields):
    return Progress(rank, len(history), history[-1][0], 5.0, "n0", 1, history=history, **fields)


def test_a_lane_ends_with_the_ranks_last_word(tmp_path):
    text = part(tmp_path, at(0, ("rollout", 990.0), ("reward", 994.0), silent_s=3.0))
    assert "rollout, 4.0s" in text and "reward, 3.0s" in text
    # A long wait does not squeeze all else.
    text = part(tmp_path, at(0, ("rollout", -9000.0), ("reward", -8000.0), ("reshard", 999.0)))
    assert "rollout" not in text and "reward, 9m 59s" in text


def test_colours_are_those_of_the_other_parts(tmp_path):
    write_ranks(tmp_path, Ranks(NOW, 10.0, 120.0, None, (at(0, ("a", 990.0), ("b", 991.0)),)))
    text = ranks_part(tmp_path, {"x": 3.0, "a": 2.0})
    assert '<i class="c5"></i>a</span><span><i class="c7"></i>other' in text
    assert '<rect class="c7"' in text


def test_clocks_that_differ_do_no_harm(tmp_path):
    text = part(tmp_path, at(0, ("rollout", 999.0), ("reward", 1003.0)), at(1, ("rollout", 1007.0)))
    assert text.count("<title>") == 1


def test_nothing_to_draw(tmp_path):
    assert ranks_part(tmp_path, {}) == ""
    for history in ((), (("rollout", 2000.0),)):
        assert part(tmp_path, Progress(0, 1, "rollout", 5.0, "n0", 1, history=history)) == ""


def test_only_the_first_ranks_have_lanes(tmp_path):
    more = (Progress(rank, 1, "rollout", 5.0, "n9", 1) for rank in range(1, 5))
    assert "The first 1 of 5 ranks." in part(tmp_path, at(0, ("rollout", 990.0)), *more)


def test_late_ranks_are_told(tmp_path):
    ahead = at(0, ("rollout", 700.0), ("reward", 990.0))
    text = part(tmp_path, ahead, Progress(1, 1, "rollout", 300.0, "n1", 2))
    assert "<b>Late</b> rank 1: rank 1 on n1 in rollout for 5m 00s." in text
