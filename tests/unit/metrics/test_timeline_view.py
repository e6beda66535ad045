"""The timeline on a page: which steps, which ranks below which placement, which colours."""

from __future__ import annotations

import re
from pathlib import Path

from verl_hpc.metrics.timeline import Interval, Timeline, read_timeline
from verl_hpc.metrics.timeline_view import after_last_pause, newest_steps, timeline_card

Rows = list[tuple[int, str, str, float, float]]


def write(directory: Path, rank: int, rows: Rows) -> None:
    """Intervals as (step, operator, placement, start, stop)."""
    now = [0.0]
    with Timeline(directory, rank, None, lambda: now[0]) as timeline:
        for step, operator, placement, start, stop in rows:
            now[0] = start
            timeline.begin(step, operator, placement)
            now[0] = stop
            timeline.end()


def split_run(directory: Path) -> None:
    """Rank 0 trains step k while rank 1 generates step k + 1."""
    write(directory, 0, [(k, "update_actor", "train", 10.0 * k, 10.0 * k + 9) for k in (1, 2, 3)])
    write(directory, 1, [(k, "rollout", "rollout", 10.0 * k - 10, 10.0 * k) for k in (1, 2, 3, 4)])


def headings(page: str) -> list[str]:
    return re.findall(r'class="group"[^>]*>([^<]*)<', page)


def test_the_newest_steps(tmp_path):
    assert newest_steps(tmp_path) == range(0)
    split_run(tmp_path)
    assert newest_steps(tmp_path) == range(2, 5)
    write(tmp_path, 1, [(7, "rollout", "rollout", 0.0, 1.0)])
    write(tmp_path, 0, [])
    assert newest_steps(tmp_path) == range(7, 8)


def test_overlap_of_placements(tmp_path):
    split_run(tmp_path)
    card = timeline_card(tmp_path, range(2, 5), {})
    assert headings(card) == ["train", "rollout"]
    told = re.findall(r"<title>([^<]*)</title>", card)
    assert told == [
        *(f"step {k}, update_actor, 9.0s" for k in (2, 3)),
        *(f"step {k}, rollout, 10.0s" for k in (2, 3, 4)),
    ]
    assert re.findall(r">(step \d)<", card) == ["step 2", "step 3", "step 4"]
    assert "Seconds since step 2 began" in card
    for steps in (range(50, 60), range(0)):
        assert timeline_card(tmp_path, steps, {}) == ""


def test_ranks_of_the_same_placements_stand_together(tmp_path):
    for rank, places in enumerate((["a", "b"], ["c"], ["b", "all", "a"], ["everywhere"])):
        write(tmp_path, rank, [(1, "x", place, i, i + 1.0) for i, place in enumerate(places)])
    card = timeline_card(tmp_path, range(1, 2), {})
    assert headings(card) == ["a + b", "c", "everywhere"]
    assert re.findall(r'text-anchor="end">(\d+)<', card) == ["0", "2", "1", "3"]


def keys(page: str) -> dict[str, str]:
    return dict(re.findall(r'<i class="(c\d)"></i>(\w+)', page))


def test_colours_are_those_of_the_page(tmp_path):
    split_run(tmp_path)
    assert keys(timeline_card(tmp_path, range(1, 4), {})) == {"c0": "update_actor", "c1": "rollout"}
    write(tmp_path, 0, [(3, "b", "train", 21.0, 22.0)])
    card = timeline_card(tmp_path, range(3, 4), {"a": 3.0, "b": 2.0})
    assert keys(card) == {"c5": "b", "c1": "rollout"}, "c6 is that of a"


def test_more_operators_than_colours(tmp_path):
    write(tmp_path, 0, [(1, f"op{i}", "train", i, i + 1.0 - i / 100) for i in range(12)])
    card = timeline_card(tmp_path, range(1, 2), {})
    assert len(set(re.findall(r'<i class="(c\d)"></i>op', card))) == 7
    assert (card.count('<i class="c7"></i>other'), card.count('<rect class="c7"')) == (1, 5)


def test_a_pause_between_two_starts_is_left_out(tmp_path):
    rows: Rows = [(k, "rollout", "all", t, t + 9) for k, t in ((1, 0.0), (2, 10.0))]
    rows += [(k, "rollout", "all", t, t + 9) for k, t in ((3, 4000.0), (4, 4010.0))]
    write(tmp_path, 0, rows)
    card = timeline_card(tmp_path, range(2, 5), {})
    assert re.findall(r"<title>(step \d)", card) == ["step 3", "step 4"]
    assert "What was before a pause of 1h 06m is left out." in card
    kept, pause = after_last_pause(read_timeline(tmp_path, None))
    assert [interval.step for interval in kept] == [3, 4] and pause == 4000 - 19
    # Steps before it can be asked for.
    card = timeline_card(tmp_path, range(1, 3), {})
    assert re.findall(r"<title>(step \d)", card) == ["step 1", "step 2"]
    assert "pause" not in card


def test_an_evaluation_of_the_step_before_is_no_pause(tmp_path):
    """Rank 1 is a step ahead, and both evaluate after step 8."""
    testing = (8, "testing", "all", 20.0, 60.0)
    trained: Rows = [(8, "update_actor", "train", 10.0, 20.0), testing]
    trained += [(k, "update_actor", "train", 10.0 * k - 30, 10.0 * k - 20) for k in (9, 10)]
    made: Rows = [(9, "rollout", "rollout", 10.0, 18.0), (8, "wait", "all", 18.0, 20.0), testing]
    made += [(k, "rollout", "rollout", 10.0 * k - 40, 10.0 * k - 32) for k in (10, 11)]
    write(tmp_path, 0, trained)
    write(tmp_path, 1, made)
    for steps in (range(9, 12), range(9, 10)):
        card = timeline_card(tmp_path, steps, {})
        assert "step 9, rollout, 8.0s" in card
        assert "pause" not in card


def test_a_rank_that_waits_is_no_pause():
    both = [Interval(0, 1, "x", "a", 0.0, 100.0), Interval(1, 1, "y", "b", 99.0, 101.0)]
    assert after_last_pause(both) == (both, 0.0)
    assert after_last_pause([]) == ([], 0.0)
