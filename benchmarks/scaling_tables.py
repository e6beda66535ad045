"""Tables of scaling on paper, in Markdown, and the picture."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import log2
from typing import Any

from benchmarks.figures import markdown_table
from benchmarks.picture import picture_of
from benchmarks.scaling_paper import RULE, Row, Step, breaks_at, breaks_at_of_best
from benchmarks.scaling_shapes import Shape
from verl_hpc.metrics.series import Point

NONE = "-"
_TERMS = 3
"""That are named of an operator."""


def strong_table(rows: Sequence[Row], ranks_per_node: int) -> str:
    """One line a size."""
    header = ("GPUs", "nodes", "s/step", "tokens/s", "efficiency", "utilisation", "GiB to spare",
              "loses most in", "layout")  # fmt: skip
    lines = [
        (*_size(row, ranks_per_node), *_figures(row), NONE if row.step is None else row.step.layout)
        for row in rows
    ]
    return markdown_table(header, lines)


def beside_table(own: Sequence[Row], found: Sequence[Row], ranks_per_node: int) -> str:
    """The configuration's own layout, and what a search finds."""
    header = ("GPUs", "nodes", "s/step", "tokens/s", "efficiency", "utilisation", "GiB to spare",
              "loses most in", "best found, s/step", "its layout")  # fmt: skip
    lines = [
        (
            *_size(mine, ranks_per_node),
            *_figures(mine),
            NONE if best.step is None else _seconds(best.step),
            NONE if best.step is None else best.step.layout,
        )
        for mine, best in zip(own, found, strict=True)
    ]
    return markdown_table(header, lines)


def weak_table(series: Mapping[str, Sequence[Row]]) -> str:
    """Efficiency of all runs, one line each."""
    sizes = [row.num_ranks for row in next(iter(series.values()))]
    header = ("run", "sequences on a GPU", "s/step, first", *(f"{size:,}" for size in sizes))
    lines = []
    for name, rows in series.items():
        first = next(row.step for row in rows if row.step is not None)
        each = f"{first.sequences / first.num_ranks:g}"
        cells = [NONE if row.step is None else f"{row.efficiency:.0%}" for row in rows]
        lines.append((name, each, _seconds(first), *cells))
    return markdown_table(header, lines)


def breaks_table(series: Mapping[str, Sequence[Row]]) -> str:
    """Where the rule breaks, and what the loss is there."""
    header = ("run", "GPUs, last that keeps it", "first below", "efficiency", "loses most in",
              "of which", "first below, of its best size")  # fmt: skip
    return markdown_table(header, [_breaks(name, rows) for name, rows in series.items()])


def _breaks(name: str, rows: Sequence[Row]) -> tuple[str, ...]:
    kept, broken = breaks_at(rows)
    last = NONE if kept is None else f"{kept.num_ranks:,}"
    if broken is None:
        return (name, last, "none", NONE, NONE, NONE, NONE)
    terms = [f"{term} {_more(seconds)}" for term, seconds in broken.lost_terms.items()]
    strictly = breaks_at_of_best(rows)
    return (
        name,
        last,
        f"{broken.num_ranks:,}",
        f"{broken.efficiency:.0%}",
        broken.most,
        ", ".join(terms[:_TERMS]) or NONE,
        NONE if strictly is None else f"{strictly.num_ranks:,}",
    )


def _more(seconds: float) -> str:
    return f"{seconds:+.1f} s" if abs(seconds) >= 1 else f"{seconds:+.2f} s"


def picture(series: Mapping[str, Sequence[Row]]) -> str:
    """Efficiency over ranks, an SVG file."""
    curves = {name: list(_points(rows)) for name, rows in series.items()}
    ends = [step for curve in curves.values() for step, _ in curve]
    curves["the rule of centres"] = [(min(ends), RULE), (max(ends), RULE)]
    title = "Strong scaling on paper: efficiency over GPUs"
    return picture_of(title, curves, "GPUs, as a power of 2", "efficiency")


def _points(rows: Sequence[Row]) -> Iterator[Point]:
    yield from ((int(log2(r.num_ranks)), r.efficiency) for r in rows if r.step is not None)


def record_of(shape: Shape, rows: Sequence[Row]) -> list[dict[str, Any]]:
    """For machines to read."""
    found = []
    for row in rows:
        step = row.step
        one: dict[str, Any] = {"ranks": row.num_ranks, "sequences": row.sequences}
        if step is None:
            found.append(one | {"why_not": row.why_not})
            continue
        found.append(
            one
            | {
                "nodes": -(-row.num_ranks // shape.ranks_per_node),
                "step_seconds": round(step.seconds, 4),
                "tokens_per_second": round(step.tokens / step.seconds, 1),
                "efficiency": round(row.efficiency, 4),
                "utilisation": round(step.utilisation, 4),
                "spare_gib": None if step.spare_gib is None else round(step.spare_gib, 2),
                "layout": step.layout,
                "operators": _rounded(step.operators),
                "terms": {name: _rounded(terms) for name, terms in step.terms.items()},
                "lost": _rounded(row.lost),
            }
        )
    return found


def _rounded(values: Mapping[str, float]) -> dict[str, float]:
    return {name: round(value, 4) for name, value in values.items()}


def _size(row: Row, ranks_per_node: int) -> tuple[str, str]:
    return f"{row.num_ranks:,}", f"{-(-row.num_ranks // ranks_per_node):,}"


def _figures(row: Row) -> tuple[str, ...]:
    step = row.step
    if step is None:
        return (NONE,) * 6
    spare = NONE if step.spare_gib is None else f"{step.spare_gib:.0f}"
    return (
        _seconds(step),
        f"{step.tokens / step.seconds:,.0f}",
        f"{row.efficiency:.0%}",
        f"{step.utilisation:.1%}",
        spare,
        row.most or NONE,
    )


def _seconds(step: Step) -> str:
    return f"{step.seconds:,.1f}" if step.seconds >= 10 else f"{step.seconds:.2f}"
