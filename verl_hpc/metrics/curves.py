"""Draw the curves of a run as SVG files without a separate style sheet, for slides and papers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from verl_hpc.config.regular_file import make_directory, replace_text
from verl_hpc.metrics.charts import charts_of
from verl_hpc.metrics.log import Row
from verl_hpc.metrics.names import Chart
from verl_hpc.metrics.series import Point, curves
from verl_hpc.metrics.svg import line_chart, text

_WIDTH, _TOP, _HEIGHT = 300, 38, 170
"""Width, space for the title and the legend, and height of the axes, in pixels."""
_LETTER = 6
"""Width of a letter of the legend in pixels."""
_COLOURS = ("#2a78d6", "#e0672f", "#1a9c72", "#d99a00", "#6a5acd", "#d0618f", "#5a9a1f")
_STYLE = (
    "svg{font:11px sans-serif}text{fill:#62615c}.title{font-weight:bold}"
    ".grid{stroke:#e3e2de}.curve{fill:none;stroke-width:1.75;stroke-linejoin:round}"
    ".hover{display:none}"
) + "".join(f".c{i}{{stroke:{c}}}.dot.c{i},.key.c{i}{{fill:{c}}}" for i, c in enumerate(_COLOURS))


def write_curves(directory: Path, rows: Sequence[Row]) -> list[Path]:
    """Draw each chart that has points into `directory`; return the files written."""
    make_directory(directory)
    written = []
    for chart in charts_of(rows):
        if drawn := curves(chart, rows):
            written.append(directory / f"{chart.key}.svg")
            replace_text(written[-1], _picture(chart, drawn))
    return written


def _picture(chart: Chart, drawn: Mapping[str, Sequence[Point]]) -> str:
    keys, rows = _keys(drawn if len(drawn) > 1 else ())
    top = _TOP + 13 * max(rows - 1, 0)
    height = top + _HEIGHT + 12
    axes = line_chart(chart.title, drawn, chart.limits, _WIDTH, _HEIGHT)
    title = f"{chart.title} ({chart.unit})" if chart.unit else chart.title
    parts = [
        f'<rect width="{_WIDTH}" height="{height}" fill="#fff"/>',
        text(_WIDTH / 2, 14, title, "middle").replace("<text", '<text class="title"'),
        axes.replace("<svg", f'<svg y="{top}" width="{_WIDTH}" height="{_HEIGHT}"', 1),
        text(_WIDTH / 2, height - 4, "step", "middle"),
        *keys,
    ]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" '
        f'width="{2 * _WIDTH}" height="{2 * height}">\n'
        f"<style>{_STYLE}</style>\n{''.join(parts)}\n</svg>\n"
    )


def _keys(labels: Iterable[str]) -> tuple[list[str], int]:
    """Return the names of curves beside their colours, and the number of rows that they take."""
    parts, x, row = [], 8.0, 0
    for i, label in enumerate(labels):
        width = 24 + _LETTER * len(label)
        if x > 8 and x + width > _WIDTH:
            x, row = 8.0, row + 1
        y = 23 + 13 * row
        parts.append(f'<rect class="key c{i}" x="{x:.0f}" y="{y}" width="9" height="9"/>')
        parts.append(text(x + 13, y + 8, label, "start"))
        x += width
    return parts, row + 1
