"""Runs compared: groups of seeds, curves with bands, final figures, and the page."""

from __future__ import annotations

import pytest

from tests.unit.metrics.test_report import outline
from verl_hpc.metrics.comparison import (
    Compared,
    best_first,
    differing,
    final,
    front,
    groups_of,
    outcome,
)
from verl_hpc.metrics.comparison_view import MOST_CURVES, comparison_page, comparison_table
from verl_hpc.metrics.names import SCORE, SFT_LOSS, STEP_SECONDS, TOKENS, VALIDATION


def a_run(name, scores, ranks=2, seconds=1800.0, **settings):
    rows = [
        {"step": i, "time": 0.0, VALIDATION: score, STEP_SECONDS: seconds, TOKENS: 100.0}
        for i, score in enumerate(scores, 1)
    ]
    return Compared(name, rows, {"name": name, "seed": 0, "optimizer.lr": 1.0} | settings, ranks)


RUNS = [
    a_run("low", [0.1, 0.2], ranks=4),
    a_run("a", [0.25, 0.5, 0.75], **{"optimizer.lr": 2.0}),
    a_run("b", [0.75, 0.25], seconds=3600.0, seed=1, **{"optimizer.lr": 2.0}),
]


def test_runs_that_differ_in_their_seed_alone_are_a_mean_with_a_band():
    assert differing(RUNS) == {"seed": [0, 0, 1], "optimizer.lr": [1.0, 2.0, 2.0]}
    low, seeds = groups_of(RUNS)
    assert (low.label, seeds.label) == ("low", "optimizer.lr=2.0 (2 seeds)")
    assert [run.name for run in seeds.runs] == ["a", "b"]
    # Step 3 is in one of both alone.
    assert seeds.curve(VALIDATION, "step") == [(1, 0.5, 0.25, 0.75), (2, 0.375, 0.25, 0.5)]
    assert seeds.curve(VALIDATION, "hours") == [(0.75, 0.5, 0.25, 0.75), (1.5, 0.375, 0.25, 0.5)]
    assert seeds.curve(VALIDATION, "tokens")[1][0] == 200.0
    assert seeds.curve("actor/entropy", "step") == []


def test_final_figures_rank_runs():
    assert outcome(RUNS) == VALIDATION
    assert [run.name for run in best_first(RUNS, VALIDATION)] == ["a", "b", "low"]
    header, lines = comparison_table(RUNS, VALIDATION)
    assert header == ("run", "evaluation score", "steps", "training time", "rank-hours", "tokens")
    assert lines[0] == ("low", "0.2", "2", "1h 00m", "4", "200")
    noisy = Compared("n", [{"step": i, SCORE: float(i)} for i in range(1, 21)], {}, None)
    assert final(noisy, SCORE) == 19.5
    assert noisy.rank_hours is None
    losses = [Compared(n, [{"step": 1, SFT_LOSS: v}], {}, 1) for n, v in (("x", 2.0), ("y", 1.0))]
    nothing = Compared("z", [], {}, 1)
    assert [r.name for r in best_first([nothing, *losses], SFT_LOSS)] == ["y", "x", "z"]
    assert outcome([nothing]) is None


def test_the_front_has_what_nothing_cheaper_equals():
    points = [(3.0, 0.5), (1.0, 0.2), (2.0, 0.2), (4.0, 0.4), (1.0, 0.1)]
    expected = [
        (x, y)
        for x, y in sorted(points)
        if not any((a, b) != (x, y) and a <= x and b >= y for a, b in points)
    ]
    assert [*front(points, largest=True)] == expected == [(1.0, 0.2), (3.0, 0.5)]
    assert [*front(points, largest=False)] == [(1.0, 0.1)]


def test_a_page_has_curves_over_each_axis_and_says_whose_are_left_out():
    page = comparison_page(RUNS)
    assert page.count('class="band') == 3
    assert page.count("charts over-") == 3
    assert "Settings that differ" in page
    assert "rank-hours" in page
    outline(page.replace("<input ", "<br ").replace("<path ", "<br ").replace("<rect ", "<br "))
    many = [a_run(f"r{i}", [i / 10], **{"optimizer.lr": i}) for i in range(MOST_CURVES + 2)]
    page = comparison_page(many)
    assert "2 have none" in page
    assert "r8</span>" in page


@pytest.mark.parametrize("name", ["<b>", "a&b"])
def test_names_of_runs_are_text(name):
    page = comparison_page([a_run(name, [0.1]), a_run("other", [0.2], seed=3)])
    assert name not in page
