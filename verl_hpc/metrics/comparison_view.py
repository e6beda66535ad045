"""Write a page that compares runs, in one file without a script."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from html import escape
from typing import Any

from verl_hpc.metrics.charts import charts_of
from verl_hpc.metrics.comparison import (
    OUTCOMES,
    Axis,
    Compared,
    Group,
    best_first,
    differing,
    final,
    front,
    groups_of,
    is_loss,
    outcome,
)
from verl_hpc.metrics.log import Row
from verl_hpc.metrics.names import Chart
from verl_hpc.metrics.report import page
from verl_hpc.metrics.sections import figure, key, section, table_of
from verl_hpc.metrics.series import axis_range
from verl_hpc.metrics.svg import Frame, horizontal_grid, picture, text, tick_labels, ticks
from verl_hpc.metrics.text import duration, number

MOST_CURVES = 7
"""Most groups with curves: as many as the style sheet has colours."""
_AXES: Mapping[Axis, str] = {"step": "steps", "tokens": "tokens", "hours": "hours"}
_LONGEST_VALUE = 60
_MOST_LABELS = 12


def comparison_page(runs: Sequence[Compared]) -> str:
    """Return a whole page of the sections of `comparison_body`."""
    names = "".join(f"<span>{escape(run.name)}</span>" for run in runs)
    return page(f"{len(runs)} runs compared", names, "", comparison_body(runs))


def comparison_body(runs: Sequence[Compared]) -> str:
    """Return final figures, settings that differ, curves over steps, tokens and hours, and the
    figures against what they cost, as HTML."""
    ranked = outcome(runs)
    ordered = best_first(runs, ranked) if ranked else [*runs]
    groups = groups_of(ordered)
    colours = {run.name: f"c{min(i, MOST_CURVES)}" for i, g in enumerate(groups) for run in g.runs}
    squares = [colours[run.name] for run in ordered]
    parts = [section("Runs", table_of(*comparison_table(ordered, ranked), squares))]
    if settings := differing(ordered):
        cells = ([name, *map(_value, values)] for name, values in settings.items())
        table = table_of(("setting", *(escape(run.name) for run in ordered)), cells)
        parts.append(section("Settings that differ", table))
    parts.append(_curves(groups, ranked))
    if ranked:
        parts.append(_costs(ordered, ranked, colours))
    return "".join(parts)


def comparison_table(
    runs: Sequence[Compared], ranked: str | None
) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Return header and cells of the table of runs.

    Args:
        ranked: metric of the runs' final figures; None leaves them out.
    """
    lines = [
        (
            run.name,
            *([number(final(run, ranked))] if ranked else []),
            f"{run.steps:,}",
            duration(run.hours * 3600),
            number(run.rank_hours),
            number(run.tokens),
        )
        for run in runs
    ]
    figures = (OUTCOMES[ranked],) if ranked else ()
    return ("run", *figures, "steps", "training time", "rank-hours", "tokens"), lines


def _value(value: Any) -> str:
    words = "-" if value is None else str(value)
    return words if len(words) <= _LONGEST_VALUE else f"{words[:_LONGEST_VALUE]}..."


def _curves(groups: Sequence[Group], ranked: str | None) -> str:
    """Return the charts once for each axis; buttons choose the axis that is shown."""
    shown = groups[:MOST_CURVES]
    rows = [row for group in shown for run in group.runs for row in run.rows]
    charts = [one for chart in charts_of(rows) if (one := _of_one_metric(chart, rows))]
    charts.sort(key=lambda chart: ranked not in chart.curves)
    buttons = "".join(
        f'<input type="radio" name="axis" id="over-{axis}"{" checked" * (axis == "step")}>'
        f'<label for="over-{axis}"> over {words}</label> '
        for axis, words in _AXES.items()
    )
    drawn = "".join(
        f'<div class="charts over-{axis}">{"".join(_figures(charts, shown, axis))}</div>'
        for axis in _AXES
    )
    words = key({group.label: f"c{i}" for i, group in enumerate(shown)})
    if any(len(group.runs) > 1 for group in shown):
        words += "<p>A band reaches from the least to the largest value of the seeds.</p>"
    if left_out := len(groups) - len(shown):
        words += f"<p>The first {MOST_CURVES} groups have curves, {left_out} have none.</p>"
    return section("Curves", f"{words}{buttons}{drawn}") if charts else ""


def _of_one_metric(chart: Chart, rows: Sequence[Row]) -> Chart | None:
    """Return a chart of its first metric that any row has; None without one."""
    for name, label in chart.curves.items():
        if any(row.get(name) is not None for row in rows):
            return replace(chart, curves={name: label})
    return None


def _figures(charts: Sequence[Chart], groups: Sequence[Group], axis: Axis) -> Iterator[str]:
    for i, chart in enumerate(charts):
        (metric,) = chart.curves
        curves = {group.label: group.curve(metric, axis) for group in groups}
        means = {label: [(x, y) for x, y, _, _ in curve] for label, curve in curves.items()}
        bands = {g.label: [(x, a, b) for x, _, a, b in curves[g.label]] for g in groups}
        bands = {g.label: bands[g.label] for g in groups if len(g.runs) > 1 and bands[g.label]}
        if any(means.values()):
            yield figure(chart, means, wide=not i, across=axis, bands=bands, legend=False)


def _costs(runs: Sequence[Compared], ranked: str, colours: Mapping[str, str]) -> str:
    """Return a picture of final figures against rank-hours, with a line along the best ones for
    their cost."""
    points = {
        run.name: (run.rank_hours, value)
        for run in runs
        if run.rank_hours is not None and (value := final(run, ranked)) is not None
    }
    if len(points) < 2:
        return ""
    costs, values = zip(*points.values(), strict=True)
    frame = Frame(824, 260, axis_range(costs, 0.06), axis_range(values, 0.06))
    marks = ticks(frame.x_range, 6)
    places = zip(marks, tick_labels(marks), strict=True)
    best = [
        f"{frame.x(x):.1f} {frame.y(y):.1f}"
        for x, y in front([*points.values()], not is_loss(ranked))
    ]
    named = len(points) <= _MOST_LABELS
    title = f"{OUTCOMES[ranked].capitalize()} against rank-hours"
    drawn = picture(
        title,
        frame.width,
        frame.height,
        [
            *horizontal_grid(frame),
            *(text(frame.x(x), frame.height - 6, word, "middle") for x, word in places),
            f'<path class="curve c7" d="M{"L".join(best)}"/>',
            *(
                f'<g><circle class="dot {colours[name]}" cx="{frame.x(x):.1f}" '
                f'cy="{frame.y(y):.1f}" r="4"/><title>{escape(name)}\n{number(y)} in {number(x)} '
                "rank-hours</title></g>"
                for name, (x, y) in points.items()
            ),
            *(
                text(frame.x(x) + 7, frame.y(y) - 5, n, "start")
                for n, (x, y) in points.items()
                if named
            ),
        ],
    )
    return section(title, f'<div class="card">{drawn}</div>')
