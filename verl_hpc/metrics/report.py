"""report.html: what a run did, on one page that needs nothing beside it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from statistics import mean
from string import Template
from typing import Any

from verl_hpc import __version__
from verl_hpc.metrics.curves import write_curves
from verl_hpc.metrics.log import Row, read_metrics
from verl_hpc.metrics.names import (
    CHARTS,
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
)
from verl_hpc.metrics.series import OTHER, bins, curves, fold, mean_seconds, points
from verl_hpc.metrics.svg import level_bars, line_chart, stacked_bars
from verl_hpc.metrics.text import duration, number, size

FILE_NAME = "report.html"
TEMPLATE = Path(__file__).with_name(FILE_NAME)
PLACED = ("name", "recipe", "state", "total_steps", "config")
"""Facts that have a place of their own on the page."""
COLOURS = ("c0", "c1", "c2", "c3", "c4", "c5", "c6")
"""Classes of the style sheet for the longest operators; c7 is grey and takes the rest."""
NUM_BARS = 60
NUM_LAST_STEPS = 10


def write_report(run_directory: str | Path, facts: Mapping[str, Any]) -> Path:
    """Write report.html, and plots/ with the same curves as PNG, from a run's metrics.jsonl.

    Args:
        facts: what metrics do not tell. `name`, `recipe`, `state`, `total_steps` and `config` (the
            resolved YAML) have their places; all others (layouts, commit, versions ...) are listed
            as they come, a mapping as its pairs.

    Returns:
        The path of report.html.

    Raises:
        DataError: the directory has no metrics.jsonl.
    """
    directory = Path(run_directory)
    rows = read_metrics(directory)
    page = Template(TEMPLATE.read_text(encoding="utf-8")).substitute(
        name=escape(str(facts.get("name", directory.resolve().name))),
        subtitle=_subtitle(rows, facts),
        alert=_alert(rows),
        headline=_headline(rows),
        facts=_facts(facts),
        charts=_charts(rows),
        times=_times([row for row in rows if STEP_SECONDS in row]),
        resharding=_resharding(rows),
        last_steps=_last_steps(rows[-NUM_LAST_STEPS:]),
        config=_config(facts),
        version=__version__,
    )
    path = directory / FILE_NAME
    path.write_text(page, encoding="utf-8")
    write_curves(directory / "plots", rows)
    return path


def _subtitle(rows: Sequence[Row], facts: Mapping[str, Any]) -> str:
    words = [escape(str(facts[key])) for key in ("recipe", "state") if key in facts]
    if not rows:
        words.append("no step done")
    else:
        of_total = f" of {facts['total_steps']}" if "total_steps" in facts else ""
        words.append(f"step {rows[-1]['step']}{escape(of_total)}")
        words.append(f"{_moment(rows[0])} to {_moment(rows[-1])}")
    return "".join(f"<span>{word}</span>" for word in words)


def _moment(row: Row) -> str:
    return f"{datetime.fromtimestamp(row['time'], UTC):%Y-%m-%d %H:%M} UTC"


def _alert(rows: Sequence[Row]) -> str:
    """Which metrics were NaN or infinite, and when first."""
    found: dict[str, list[str]] = {}
    for row in rows:
        for name, value in row.get("not_finite", {}).items():
            found.setdefault(name, []).append(f"{value} at step {row['step']}")
    if not found:
        return ""
    lines = (
        f"{escape(name)}: {escape(first)}{f' and {len(more)} more' if more else ''}"
        for name, (first, *more) in found.items()
    )
    return f'<p class="alert"><b>Not finite</b><br>{"<br>".join(lines)}</p>'


def _headline(rows: Sequence[Row]) -> str:
    tiles = [
        *_change("Reward", points(rows, SCORE)),
        *_change("Evaluation accuracy", points(rows, VALIDATION)),
        *_change("SFT loss", points(rows, SFT_LOSS)),
    ]
    if throughput := _values(rows, THROUGHPUT):
        tokens = sum(_values(rows, TOKENS))
        note = f"{number(tokens)} tokens in all" if tokens else ""
        tiles.append(_tile("Tokens a second", number(mean(throughput)), note))
    if seconds := _values(rows, STEP_SECONDS):
        tiles.append(
            _tile("Training time", duration(sum(seconds)), f"{duration(mean(seconds))} a step")
        )
    if received := _values(rows, RESHARD_RECEIVED):
        tiles.append(_tile("Weights resharded", size(sum(received)), _ratio(rows)))
    return "".join(tiles)


def _values(rows: Sequence[Row], name: str) -> list[float]:
    return [value for _, value in points(rows, name)]


def _change(label: str, curve: Sequence[tuple[int, float]]) -> list[str]:
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


def _facts(facts: Mapping[str, Any]) -> str:
    return "".join(
        f"<dt>{escape(key)}</dt><dd>{escape(_plain(value))}</dd>"
        for key, value in facts.items()
        if key not in PLACED
    )


def _plain(value: Any) -> str:
    if isinstance(value, Mapping):
        return "; ".join(f"{key} {_plain(inner)}" for key, inner in value.items())
    return str(value)


def _charts(rows: Sequence[Row]) -> str:
    return "".join(
        _figure(chart.title, list(drawn), line_chart(chart.title, drawn))
        for chart in CHARTS
        if (drawn := curves(chart, rows))
    )


def _figure(title: str, labels: Sequence[str], svg: str) -> str:
    keys = "".join(f'<i class="c{i}"></i>{label} ' for i, label in enumerate(labels))
    legend = f"<small>{keys}</small>" if len(labels) > 1 else ""
    return f"<figure><figcaption>{title}{legend}</figcaption>{svg}</figure>"


def _times(rows: Sequence[Row]) -> str:
    seconds = mean_seconds(rows)
    step = sum(seconds.values())
    if not step:
        return ""
    named = [name for name in seconds if name != OTHER][: len(COLOURS)]
    colours = {**dict(zip(named, COLOURS, strict=False)), OTHER: "c7"}
    bars = [(_label(part), fold(mean_seconds(part), named)) for part in bins(rows, NUM_BARS)]
    title = "Step time by operator"
    table = _table(
        ("operator", "mean a step", "share", "total"),
        (
            [name, duration(spent), f"{spent / step:.1%}", duration(spent * len(rows))]
            for name, spent in seconds.items()
        ),
        [colours.get(name, colours[OTHER]) for name in seconds],
    )
    return _section(title, f'<div class="card">{stacked_bars(title, bars, colours)}</div>{table}')


def _label(rows: Sequence[Row]) -> str:
    first, last = rows[0]["step"], rows[-1]["step"]
    return f"{first}" if first == last else f"{first}-{last}"


def _resharding(rows: Sequence[Row]) -> str:
    names = {"received": RESHARD_RECEIVED, "least possible": RESHARD_MINIMUM}
    bars = {label: mean(found) for label, name in names.items() if (found := _values(rows, name))}
    if not bars:
        return ""
    words = ["Bytes of a mean step, all ranks together"]
    if seconds := _values(rows, RESHARD_SECONDS):
        words.append(f"{duration(mean(seconds))} a step")
    title = "Resharding"
    chart = level_bars(title, bars, size)
    return _section(title, f'<div class="card">{chart}<p>{"; ".join(words)}.</p></div>')


def _last_steps(rows: Sequence[Row]) -> str:
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
    return _section("Last steps", _table(("step", *columns.values(), "time"), lines))


def _config(facts: Mapping[str, Any]) -> str:
    if "config" not in facts:
        return ""
    text = escape(facts["config"])
    return f"<details><summary>Resolved configuration</summary><pre>{text}</pre></details>"


def _section(title: str, body: str) -> str:
    return f"<section><h2>{title}</h2>{body}</section>"


def _table(
    header: Sequence[str], lines: Iterable[Sequence[str]], colours: Sequence[str] = ()
) -> str:
    """Escapes its cells. `colours` are classes of a square before each line's first cell."""
    body = []
    for i, (first, *rest) in enumerate(lines):
        square = f'<i class="{colours[i]}"></i>' if colours else ""
        cells = "".join(f"<td>{escape(cell)}</td>" for cell in rest)
        body.append(f"<tr><th>{square}{escape(first)}</th>{cells}</tr>")
    head = "".join(f"<th>{title}</th>" for title in header)
    return f'<div class="wide"><table><tr>{head}</tr>{"".join(body)}</table></div>'
