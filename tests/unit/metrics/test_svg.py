"""Charts are well-formed and put data where it belongs."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Sequence
from xml.etree import ElementTree as ET

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from verl_hpc.metrics.names import CHARTS
from verl_hpc.metrics.series import axis_range
from verl_hpc.metrics.svg import line_chart, stacked_bars, ticks


def test_ticks_are_round():
    for span, count, expected in (
        ((0, 17), 4, [0, 5, 10, 15]),
        ((1, 200), 5, [50, 100, 150, 200]),
        ((-0.01, 0.011), 4, [-0.01, -0.005, 0.0, 0.005, 0.01]),
        ((0.9e-6, 1.1e-6), 4, [0.9e-6, 0.95e-6, 1e-6, 1.05e-6, 1.1e-6]),
    ):
        assert ticks(span, count) == pytest.approx(expected, abs=1e-12)


def test_a_range_stays_within_its_limits():
    for values, limits, expected in (
        ([0.0, 0.0], (None, None), (0.0, 1.0)),
        ([0.0, 0.5], (0.0, 1.0), (0.0, 0.53)),
        ([0.5, 1.0], (0.0, 1.0), (0.47, 1.0)),
        ([1.0], (0.0, 1.0), (0.9, 1.0)),
        ([-6.1e14, 0.5], (-1.0, 1.0), (-1.0, 0.59)),
    ):
        assert axis_range(values, 0.06, limits) == pytest.approx(expected)
    for value in (5.0, -3.0, 1e-6):
        low, high = axis_range([value], 0.0)
        assert low < value < high
        assert math.isclose(low + high, 2 * value, abs_tol=1e-12)


def notation(label: str) -> str:
    """'e' of an exponent, else decimals as zeros, and the unit."""
    return "e" if "e" in label else re.sub(r"\d", "0", re.sub(r"^-?[\d,]+", "", label))


def vertical_labels(
    values: Sequence[float], limits: tuple[float | None, float | None] = (None, None)
) -> list[str]:
    svg = line_chart("x", {"x": list(enumerate(values))}, limits)
    texts = ET.fromstring(svg).findall("text")
    return [text.text or "" for text in texts if text.attrib["text-anchor"] == "end"]


sizes = st.floats(1e-9, 1e90)
numbers = st.just(0.0) | sizes | sizes.map(operator.neg)
limits_of_charts = st.sampled_from(sorted({chart.limits for chart in CHARTS}, key=str))
narrow = st.tuples(numbers, st.floats(-1e-2, 1e-2)).map(lambda two: (two[0], two[0] * (1 + two[1])))


@given(st.tuples(numbers, numbers) | narrow, limits_of_charts)
@example((1e-3, 1e-3), (None, None))
@example((0.0, 1e-3), (0.0, None))
@example((2000.1, 2000.9), (0.0, None))
@example((1_234_567.0, 1_234_580.0), (None, None))
@example((-1.0000001e-9, -1e-9), (None, None))
def test_labels_of_an_axis_differ_fit_and_have_one_notation(values, limits):
    labels = vertical_labels(values, limits)
    assert len(labels) == len(set(labels)) >= 2
    assert max(map(len, labels)) <= 9, labels
    assert len({notation(label) for label in labels if label != "0"}) == 1, labels


def test_what_lies_beyond_the_limits_is_drawn_at_the_end_and_told_as_it_is():
    svg = line_chart("share", {"share": [(1, -6.1e14), (2, 0.5)]}, (-1.0, 1.0))
    root = ET.fromstring(svg)
    (curve,) = root.findall("path[@class='curve c0']")
    first = float(curve.attrib["d"].removeprefix("M").partition("L")[0].split()[1])
    assert first == pytest.approx(150 - 22)
    assert next(root.iter("title")).text == "step 1\nshare -610T"
    labels = [text.text or "" for text in root.findall("text")]
    assert "1" not in labels[:1] and all("T" not in label for label in labels)


def test_a_wide_chart_of_many_steps_shows_averages_over_pale_curves():
    curve = [(step, float(step % 2)) for step in range(100)]
    wide = ET.fromstring(line_chart("x", {"a": curve}, width=616))
    classes = [path.attrib.get("class") for path in wide]
    assert classes.count("curve c0 pale") == classes.count("curve c0") == 1
    assert "pale" not in line_chart("x", {"a": curve})


def test_line_chart_of_two_curves():
    svg = line_chart("A <b>", {"mean": [(1, 0.5), (2, 0.7)], "max": [(2, 1.0)]})
    root = ET.fromstring(svg)
    assert root.attrib["aria-label"] == "A <b>"
    assert len(root.findall("path[@class='curve c0']")) == len(root.findall("circle")) == 1
    titles = [title.text for title in root.iter("title")]
    assert titles == ["step 1\nmean 0.5", "step 2\nmean 0.7\nmax 1"]


def test_bars_stack_without_gaps():
    bars = [("1-2", {"rollout": 3.0, "other": 1.0}), ("3", {"other": 2.0})]
    svg = stacked_bars("times", bars, {"rollout": "c0", "other": "c7"})
    groups = ET.fromstring(svg).findall("g")
    rollout, other = groups[0].findall("rect")
    top_of_rollout = float(rollout.attrib["y"])
    bottom_of_other = float(other.attrib["y"]) + float(other.attrib["height"])
    assert bottom_of_other == pytest.approx(top_of_rollout, abs=0.2)
    assert groups[0].findtext("title") == "step 1-2\nrollout 3.0s\nother 1.0s"
