"""Sections of a page about a run: headline figures, curves and times from its metrics, as HTML."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from statistics import mean

from verl_hpc.config.regular_file import is_regular, read_regular
from verl_hpc.metrics.charts import charts_of
from verl_hpc.metrics.log import Row
from verl_hpc.metrics.names import (
    OVERLAP,
    PAIR_LOSS,
    PREFERENCE_LOSS,
    RESHARD_MINIMUM,
    RESHARD_RECEIVED,
    RESHARD_SECONDS,
    SCORE,
    SFT_LOSS,
    STEP_SECONDS,
    SUMMARY,
    THROUGHPUT,
    TOKENS,
    VALIDATION,
    WAIT,
    Chart,
)
from verl_hpc.metrics.series import OTHER, Point, bins, curves, fold, mean_seconds, overlaps, points
from verl_hpc.metrics.svg import BandPoint, line_chart, stacked_bars
from verl_hpc.metrics.text import duration, number, size, visible

COLOURS = ("c0", "c1", "c2", "c3", "c4", "c5", "c6")
"""Classes of the style sheet for the longest operators; c7 is grey and takes the rest."""
OPERATOR_COLOURS: Mapping[str, str] = {
    "update_actor": "c0",
    "rollout": "c1",
    "old_log_probs": "c2",
    "save_checkpoint": "c3",
    "update_critic": "c4",
    "values": "c5",
    "reshard": "c6",
}
NUM_BARS = 60


def alert(rows: Sequence[Row]) -> str:
    """Return a warning that lists metrics that were NaN or infinite, and when first; or nothing."""
    by_metric: dict[str, list[str]] = {}
    for row in rows:
        for name, value in row.get("not_finite", {}).items():
            by_metric.setdefault(name, []).append(f"{value} at step {row['step']}")
    if not by_metric:
        return ""
    lines = (
        f"{escape(name)}: {escape(first)}{f' and {len(more)} more' if more else ''}"
        for name, (first, *more) in by_metric.items()
    )
    return f'<p class="alert"><b>Not finite</b><br>{"<br>".join(lines)}</p>'


def overlap_alert(evaluation: Mapping[str, int]) -> str:
    """Return a warning that prompts of evaluation are trained on, by the run's facts; or
    nothing."""
    shared = evaluation.get("prompts found in training", 0)
    if not shared or evaluation.get("rows dropped from training", 0):
        return ""
    return (
        '<p class="alert"><b>Evaluation is not held out</b><br>'
        f"{shared:,} of its {evaluation['different prompts']:,} different prompts occur in "
        "training</p>"
    )


def headline(rows: Sequence[Row]) -> str:
    """Return the most important figures as a list of terms."""
    tiles = [
        *_change("Reward", points(rows, SCORE)),
        *_change("Evaluation score", points(rows, VALIDATION)),
        *_change("SFT loss", points(rows, SFT_LOSS)),
        *_change("Loss of pairs", points(rows, PAIR_LOSS)),
        *_change("Preference loss", points(rows, PREFERENCE_LOSS)),
    ]
    if throughput := _values(rows, THROUGHPUT):
        tokens = sum(_values(rows, TOKENS))
        note = f"{number(tokens)} tokens in all" if tokens else ""
        tiles.append(_tile("Tokens a second and rank", number(mean(throughput)), note))
    if seconds := _values(rows, STEP_SECONDS):
        tiles.append(
            _tile(
                "Training time",
                duration(sum(seconds)),
                f"{duration(mean(seconds))} a step, mean of all {len(seconds)}",
            )
        )
    if received := _values(rows, RESHARD_RECEIVED):
        tiles.append(_tile("Weights resharded", size(sum(received)), _ratio(rows)))
    return "".join(tiles)


def _values(rows: Sequence[Row], name: str) -> list[float]:
    return [value for _, value in points(rows, name)]


def _change(label: str, curve: Sequence[Point]) -> list[str]:
    if not curve:
        return []
    (first_step, first), (_, last) = curve[0], curve[-1]
    note = f"from {number(first)} at step {first_step}" if len(curve) > 1 else ""
    return [_tile(label, number(last), note)]


def _tile(label: str, value: str, note: str) -> str:
    return f"<div><dt>{label}</dt><dd>{value}</dd><dd>{note}</dd></div>"


def _ratio(rows: Sequence[Row]) -> str:
    minimum = sum(_values(rows, RESHARD_MINIMUM))
    if not minimum:
        return ""
    return f"{sum(_values(rows, RESHARD_RECEIVED)) / minimum:.2f} times the least possible"


def charts(rows: Sequence[Row]) -> str:
    """Return a figure for each chart that has points; the first, the most important one, is
    wide."""
    figures = [(chart, drawn) for chart in charts_of(rows) if (drawn := curves(chart, rows))]
    return "".join(figure(chart, drawn, wide=not i) for i, (chart, drawn) in enumerate(figures))


def figure(
    chart: Chart,
    drawn: Mapping[str, Sequence[Point]],
    *,
    wide: bool,
    across: str = "step",
    bands: Mapping[str, Sequence[BandPoint]] | None = None,
    legend: bool = True,
) -> str:
    """Return a chart of these points by label with its title and, if several are to have one, a
    legend; like `line_chart`."""
    svg = line_chart(chart.title, drawn, chart.limits, 616 if wide else 300, across, bands)
    keys = "".join(f'<i class="c{i}"></i>{escape(label)} ' for i, label in enumerate(drawn))
    labels = f"<small>{keys}</small>" if legend and len(drawn) > 1 else ""
    unit = f" <small>{chart.unit}</small>" if chart.unit else ""
    lead = ' class="lead"' if wide else ""
    caption = f"<figcaption><span>{escape(chart.title)}{unit}</span>{labels}</figcaption>"
    return f"<figure{lead}>{caption}{svg}</figure>"


def operator_colours(seconds: Mapping[str, float]) -> dict[str, str]:
    """Return classes of the style sheet by operator, the longest first; `other` is the rest.

    Operators that every run has keep their colour from page to page. WAIT is grey.

    Args:
        seconds: seconds of a mean step by operator, longest first.
    """
    named = [name for name in seconds if name not in (OTHER, WAIT)][: len(COLOURS)]
    own = {n: OPERATOR_COLOURS[n] for n in named if n in OPERATOR_COLOURS}
    # Taken from the end: the first colours belong to operators that other pages may have.
    free = [colour for colour in reversed(COLOURS) if colour not in own.values()]
    own |= zip((name for name in named if name not in own), free, strict=False)
    return {**{name: own[name] for name in named if name in own}, OTHER: "c7"}


def times(rows: Sequence[Row]) -> str:
    """Return step time by operator: bars over the steps and a table of means with shares, or the
    means alone if operators overlap."""
    seconds = mean_seconds(rows)
    step = sum(seconds.values())
    if not step:
        return ""
    title, colours = "Step time by operator", operator_colours(seconds)
    squares = [colours.get(name, colours[OTHER]) for name in seconds]
    if overlaps(rows):
        means = ([name, duration(spent)] for name, spent in seconds.items())
        note = f'<p class="card">Seconds are the {OVERLAP}.</p>'
        return section(title, note + table_of(("operator", "mean a step"), means, squares))
    named = [name for name in colours if name != OTHER]
    bars = [(_label(part), fold(mean_seconds(part), named)) for part in bins(rows, NUM_BARS)]
    lines = (
        [name, duration(spent), f"{spent / step:.1%}", duration(spent * len(rows))]
        for name, spent in seconds.items()
    )
    table = table_of(("operator", "mean a step", "share", "total"), lines, squares)
    return section(title, f'<div class="card">{stacked_bars(title, bars, colours)}</div>{table}')


def key(colours: Mapping[str, str]) -> str:
    """Return a legend of operators and their colours."""
    squares = (
        f'<span><i class="{colour}"></i>{escape(name)}</span>' for name, colour in colours.items()
    )
    return f'<p class="key">{"".join(squares)}</p>'


def _label(rows: Sequence[Row]) -> str:
    first, last = rows[0]["step"], rows[-1]["step"]
    return f"{first}" if first == last else f"{first}-{last}"


def resharding(rows: Sequence[Row]) -> str:
    """Return the bytes that resharding to the generation layout moved, and the least possible."""
    names = {"received": RESHARD_RECEIVED, "least possible": RESHARD_MINIMUM}
    lines = [
        (n, size(mean(values))) for n, name in names.items() if (values := _values(rows, name))
    ]
    if not lines:
        return ""
    if seconds := _values(rows, RESHARD_SECONDS):
        lines.append(("time", duration(mean(seconds))))
    return section("Resharding", table_of(("", "a mean step, all ranks together"), lines))


def last_steps(rows: Sequence[Row]) -> str:
    """Return a table of these steps with the metrics of `SUMMARY`."""
    columns = {name: label for name, label in SUMMARY.items() if any(name in r for r in rows)}
    if not columns:
        return ""
    lines = (
        [
            str(row["step"]),
            *(number(row.get(name)) for name in columns),
            duration(row.get(STEP_SECONDS)),
        ]
        for row in rows
    )
    return section("Last steps", table_of(("step", *columns.values(), "time"), lines))


def section(title: str, body: str) -> str:
    """Return a section of a page with its heading; the title is HTML."""
    return f"<section><h2>{title}</h2>{body}</section>"


def table_of(
    header: Sequence[str], lines: Iterable[Sequence[str]], colours: Sequence[str] = ()
) -> str:
    """Return a table with escaped cells; `colours` are classes of a square before each line's first
    cell."""
    body = []
    for i, (first, *rest) in enumerate(lines):
        square = f'<i class="{colours[i]}"></i>' if colours else ""
        cells = "".join(f"<td>{escape(cell)}</td>" for cell in rest)
        body.append(f"<tr><th>{square}{escape(first)}</th>{cells}</tr>")
    head = "".join(f"<th>{title}</th>" for title in header)
    return f'<div class="wide"><table><tr>{head}</tr>{"".join(body)}</table></div>'


FLOW_FILE = "flow.txt"
_MOST_FLOW_BYTES = 100_000


def flow_section(run_directory: Path) -> str:
    """Return the text of a run's flow.txt as a section; empty without one."""
    path = run_directory / FLOW_FILE
    try:
        if not is_regular(path) or path.stat().st_size > _MOST_FLOW_BYTES:
            return ""
        text = read_regular(path).decode("utf-8", errors="replace")
    except OSError:
        return ""
    told = visible(text.rstrip())
    return section("Data flow of a step", f'<div class="card"><pre>{escape(told)}</pre></div>')
