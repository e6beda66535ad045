"""The table of published steps beside those of `plan`."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from benchmarks.figures import markdown_table
from benchmarks.published.rows import Prediction, Row
from verl_hpc.planner.timing.cost import Efficiency

GOAL = 0.25
"""Relative error of a step that is aimed at on rows that were held out."""


def table(rows: Sequence[Row], efficiency: Efficiency) -> str:
    """Markdown: theirs, ours and the ratio of each step, and of operators where they are published.

    Args:
        rows: in the order in which they are shown, held out ones last.
        efficiency: factors of the prediction.
    """
    ordered = sorted(rows, key=lambda row: row.held_out)
    predicted = [row.predict(efficiency) for row in ordered]
    lines = [_line(row, step) for row, step in zip(ordered, predicted, strict=True)]
    header = ("run", "release", "theirs, s", "plan, s", "plan / theirs", "rows of")
    parts = [markdown_table(header, lines), *_operators(ordered, predicted)]
    for held_out in (False, True):
        mine = [
            step.seconds / row.seconds
            for row, step in zip(ordered, predicted, strict=True)
            if row.held_out == held_out
        ]
        parts.append(f"{_side(held_out).capitalize()}: {_summary(mine)}.")
    return "\n\n".join(parts)


def _side(held_out: bool) -> str:
    return "held out" if held_out else "the fit"


def _line(row: Row, step: Prediction) -> tuple[str, ...]:
    ratio = step.seconds / row.seconds
    release = row.run["source"].removeprefix("nemo-rl-")
    theirs = f"{row.seconds:g}"
    return (
        row.run["name"],
        release,
        theirs,
        f"{step.seconds:.1f}",
        f"{ratio:.2f}",
        _side(row.held_out),
    )


def _operators(rows: Sequence[Row], steps: Sequence[Prediction]) -> list[str]:
    """Table of the operators whose seconds are published."""
    lines = [
        (
            row.run["name"],
            name,
            f"{theirs:g}",
            f"{ours:.1f}",
            f"{ours / theirs:.2f}",
            _side(row.held_out),
        )
        for row, step in zip(rows, steps, strict=True)
        for name, theirs in row.operators.items()
        for ours in (step.of(name),)
    ]
    header = ("operators of", "", "theirs, s", "plan, s", "plan / theirs", "rows of")
    return [markdown_table(header, lines)] if lines else []


def _summary(ratios: Sequence[float]) -> str:
    off = [abs(ratio - 1.0) for ratio in ratios]
    near = sum(value <= GOAL for value in off)
    return (
        f"{near} of {len(off)} steps within {GOAL:.0%}, half of them within {median(off):.0%}, the "
        f"farthest {max(off):.0%} off"
    )
