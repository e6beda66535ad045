"""Lanes: bars where they belong, as many as can be seen."""

from __future__ import annotations

import re

from verl_hpc.metrics.lanes import WIDTH, Lane, Span, lanes
from verl_hpc.metrics.svg import LEFT, RIGHT

COLOURS = {"rollout": "c1", "update_actor": "c0"}


def drawn(*rows: Lane, **options) -> str:
    return lanes("Timeline", rows, COLOURS, "c7", **options)


def bars(svg: str) -> list[tuple[str, float, float]]:
    """Class, left edge and width of each bar."""
    found = re.findall(r'<rect class="(\w+)" x="([\d.]+)" y="[\d.]+" width="([\d.]+)"', svg)
    return [(colour, float(x), float(width)) for colour, x, width in found]


def test_bars_that_overlap_in_time_overlap_on_the_page():
    svg = drawn(
        Lane("0", [Span("update_actor", 5.0, 10.0, 1)]), Lane("1", [Span("rollout", 0.0, 8.0, 2)])
    )
    (first, x, width), (second, other_x, other_width) = bars(svg)
    scale = (WIDTH - LEFT - RIGHT) / 10
    assert (first, second) == ("c0", "c1")
    assert abs(x - (LEFT + 5 * scale)) < 0.1 and abs(other_x - LEFT) < 0.1
    assert abs(width - 5 * scale) < 1 and abs(other_width - 8 * scale) < 1
    assert "step 1, update_actor, 5.0s" in svg and "step 2, rollout, 8.0s" in svg


def test_a_wide_bar_has_its_step_and_name_and_a_narrow_one_neither():
    spans = [Span("rollout", 0.0, 8.0, 12), Span("reward", 8.0, 8.4, 12), Span("x", 8.4, 8.5, 12)]
    inside = re.findall(r'class="in"[^>]*>([^<]*)<', drawn(Lane("0", spans)))
    assert inside == ["12 rollout", "12"]


def test_many_lanes_are_low_and_have_no_words_inside():
    rows = [Lane(f"{i}", [Span("rollout", 0.0, 8.0, 12)]) for i in range(64)]
    svg = drawn(*rows)
    assert 'class="in"' not in svg
    assert len(bars(svg)) == 64
    height = int(re.search(rf'viewBox="0 0 {WIDTH} (\d+)"', svg)[1])
    assert height < 1000


def test_bars_too_narrow_to_be_seen_side_by_side_are_thinned():
    spans = [Span("rollout", i / 1000, (i + 1) / 1000, 1) for i in range(100_000)]
    assert 1000 < len(bars(drawn(Lane("0", spans)))) < 2 * WIDTH
    assert len(bars(drawn(Lane("0", [Span("rollout", 1.0, 1.0, 1)])))) == 1, "it took no time"


def test_groups_have_headings():
    span = Span("rollout", 0.0, 1.0, 1)
    svg = drawn(Lane("0", [span], "a & b"), Lane("1", [span], "a & b"), Lane("2", [span], "c"))
    assert re.findall(r'class="group"[^>]*>([^<]*)<', svg) == ["a &amp; b", "c"]
    assert 'class="group"' not in drawn(Lane("0", [span]))


def test_marks_stand_where_they_have_room():
    row = Lane("0", [Span("rollout", 0.0, 100.0, 1)])
    svg = drawn(row, marks={"step 3": 50.0, "step 1": 0.0, "step 2": 1.0, "step 4": 100.0})
    assert svg.count('class="mark"') == 4
    assert re.findall(r">(step \d)<", svg) == ["step 1", "step 3"]


def test_names_are_escaped():
    svg = drawn(Lane("<0>", [Span("<b>", 0.0, 9.0, 1)], "<c>"), marks={"<d>": 0.0})
    assert not {"<0>", "<b>", "<c>", "<d>"} & set(re.findall(r"<[^ >]*>", svg))
