"""Compare the planner's predicted times of runs with measured ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape

from verl_hpc.runs.scaling.efficiency import Measured
from verl_hpc.runs.scaling.page import markdown_table, shown

_WIDTH, _LEFT, _ROW, _BAR = 720, 150, 48, 17
"""Width of the picture and its labels, distance between runs and height of a bar, in pixels."""
_AREA = _WIDTH - _LEFT - 90
_LETTERS = 48
_COLOURS = {"measured": "#1f77b4", "predicted": "#d95f02"}
_STYLE = "svg{background:#fff;font:12px sans-serif}text{fill:#444}.title{font-size:14px}"


@dataclass(frozen=True)
class Predicted:
    """Predicted times of one run."""

    step_s: float
    operators: Mapping[str, float]
    """Seconds by operator."""


def prediction_block(
    runs: Sequence[Measured],
    predicted: Sequence[Predicted],
    unit: str,
    note: str,
    picture: str | None = None,
) -> list[str]:
    """Return the lines of the page's section.

    Args:
        runs: measured runs.
        predicted: prediction of each run.
        unit: what a rank is called.
        note: sentence about the prediction's factors.
        picture: file name of the picture; None has none.
    """
    pairs = sorted(zip(runs, predicted, strict=True), key=lambda pair: pair[0].ranks)
    lines = ["## Prediction", "", *_table(pairs, unit), ""]
    lines += ["```", *_bars(pairs), "```", ""]
    if picture is not None:
        lines += [f"![Seconds a step, measured and predicted]({picture})", ""]
    return [*lines, note, "", *_operators(pairs)]


_Pairs = Sequence[tuple[Measured, Predicted]]


def _table(pairs: _Pairs, unit: str) -> list[str]:
    header = ("run", unit, "s/step", "predicted", "off by", "efficiency", "predicted")
    rows = [
        (
            run.name,
            str(run.ranks),
            f"{run.step_s:.3g}",
            f"{mine.step_s:.3g}",
            f"{mine.step_s / run.step_s - 1:+.0%}",
            f"{_efficiency(pairs, run, run.step_s, False):.1%}",
            f"{_efficiency(pairs, run, mine.step_s, True):.1%}",
        )
        for run, mine in pairs
    ]
    return markdown_table(header, rows)


def _efficiency(pairs: _Pairs, run: Measured, seconds: float, of_model: bool) -> float:
    """Return the prompts per second and rank relative to the smallest run, for strong and weak
    scaling alike."""
    first, its = pairs[0]
    base = first.batch / (first.ranks * (its.step_s if of_model else first.step_s))
    return run.batch / (run.ranks * seconds) / base


def _bars(pairs: _Pairs) -> Iterator[str]:
    most = max(max(run.step_s, mine.step_s) for run, mine in pairs)
    width = max(len(run.name) for run, _ in pairs)
    for run, mine in pairs:
        for name, kind, seconds in (
            (run.name, "measured", run.step_s),
            ("", "predicted", mine.step_s),
        ):
            bar = "#" * max(round(_LETTERS * seconds / most), 1)
            yield f"{name:<{width}}  {kind:<9} {bar} {seconds:.3g} s"


def _operators(pairs: _Pairs) -> list[str]:
    names = list(dict.fromkeys(name for run, _ in pairs for name in run.operators))
    known = [name for name in names if any(name in mine.operators for _, mine in pairs)]
    header = ("operator, s/step: measured, predicted", *(run.name for run, _ in pairs))
    rows = [
        [name, *(f"{shown(run.operators, name)}, {shown(p.operators, name)}" for run, p in pairs)]
        for name in known
    ]
    return markdown_table(header, rows)


def prediction_svg(runs: Sequence[Measured], predicted: Sequence[Predicted], unit: str) -> str:
    """Return the text of an SVG file with two bars for each run."""
    pairs = sorted(zip(runs, predicted, strict=True), key=lambda pair: pair[0].ranks)
    most = max(max(run.step_s, mine.step_s) for run, mine in pairs)
    parts = ['<text class="title" x="10" y="20">Seconds a step, measured and predicted</text>']
    for number, (kind, colour) in enumerate(_COLOURS.items()):
        x = _LEFT + 110 * number
        parts.append(f'<rect x="{x}" y="32" width="11" height="11" fill="{colour}"/>')
        parts.append(f'<text x="{x + 16}" y="42">{kind}</text>')
    for row, (run, mine) in enumerate(pairs):
        y = 58 + _ROW * row
        words = escape(f"{run.name}: {run.ranks} {unit}")
        parts.append(f'<text x="{_LEFT - 8}" y="{y + _BAR + 4}" text-anchor="end">{words}</text>')
        for seconds, colour, top in zip(
            (run.step_s, mine.step_s), _COLOURS.values(), (y, y + _BAR + 1), strict=True
        ):
            width = _AREA * seconds / most
            parts.append(
                f'<rect x="{_LEFT}" y="{top}" width="{width:.1f}" height="{_BAR}" fill="{colour}"/>'
            )
            parts.append(f'<text x="{_LEFT + width + 6:.1f}" y="{top + 13}">{seconds:.3g}</text>')
    height = 58 + _ROW * len(pairs)
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img" '
        f'aria-label="Seconds a step">\n<style>{_STYLE}</style>\n{body}\n</svg>\n'
    )
