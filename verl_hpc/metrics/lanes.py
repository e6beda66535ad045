"""Draw what ranks did side by side, as inline SVG: a lane per rank, with a bar for each
operator."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import NamedTuple

from verl_hpc.metrics.svg import BOTTOM, LEFT, RIGHT, Frame, picture, text, ticks
from verl_hpc.metrics.text import duration, number

WIDTH = 824
_TOP = 8
_HEADING = 20
"""Height of a group's name in pixels."""
_LOWEST, _HIGHEST = 14, 24
"""Least and largest height of a lane in pixels, with the gap to the next."""
_READABLE = 16
"""Height in pixels from which on bars have room for their steps."""
_LANES = 240
"""Pixels that the lanes share if they are few."""
_DIGIT = 6.5
"""Width of a digit in pixels."""
_NARROW = 0.5
"""Width of the narrowest bar in pixels; of bars that would hide each other one is drawn."""


class Span(NamedTuple):
    """One piece of work, with its beginning and end in seconds."""

    name: str
    begin: float
    end: float
    step: int | None = None


def seconds_by_name(spans: Iterable[Span]) -> dict[str, float]:
    """Sum the seconds of spans by name, longest first."""
    total: dict[str, float] = {}
    for span in spans:
        total[span.name] = total.get(span.name, 0.0) + span.end - span.begin
    return dict(sorted(total.items(), key=lambda item: -item[1]))


@dataclass(frozen=True)
class Lane:
    """Spans of one rank; lanes of a group stand below its name."""

    name: str
    spans: Sequence[Span]
    group: str = ""


def lanes(
    title: str,
    rows: Sequence[Lane],
    colours: Mapping[str, str],
    other: str,
    marks: Mapping[str, float] | None = None,
) -> str:
    """Draw one lane per rank, with its spans over time.

    Args:
        title: label for screen readers.
        rows: lanes, with times from a common zero.
        colours: classes of the style sheet by span name.
        other: class for other names.
        marks: moments by the words above them.
    """
    spans = [span for row in rows for span in row.spans]
    low, high = min(span.begin for span in spans), max(span.end for span in spans)
    height = min(max(_LANES // len(rows), _LOWEST), _HIGHEST)
    top = _TOP + (_HEADING if marks else 0)
    placed, bottom = _place(rows, top, height)
    frame = Frame(WIDTH, bottom + BOTTOM, (low, high if high > low else low + 1.0), (0.0, 1.0))
    parts = [
        *(
            text(frame.x(tick), frame.height - 6, f"{number(tick)}s", "middle")
            for tick in ticks(frame.x_range, 8)
        ),
        *_marks(frame, marks or {}, bottom),
    ]
    for row, y, is_first in placed:
        if is_first and row.group:
            parts.append(
                f'<text class="group" x="{LEFT + 4}" y="{y - 6}">{escape(row.group)}</text>'
            )
        parts.append(text(LEFT - 6, y + height / 2 + 4, row.name, "end"))
        middle = y + height / 2
        parts.append(f'<path class="grid" d="M{LEFT} {middle:.1f}H{WIDTH - RIGHT}"/>')
        parts += _bars(frame, y, height, row, colours, other)
    return picture(title, WIDTH, frame.height, parts)


def _place(rows: Sequence[Lane], top: int, height: int) -> tuple[list[tuple[Lane, int, bool]], int]:
    """Return each lane with its upper edge and whether it is the first of its group, and the lower
    edge of all."""
    placed: list[tuple[Lane, int, bool]] = []
    group, y = "", top
    for row in rows:
        is_first = not placed or row.group != group
        y += _HEADING if is_first and row.group else 0
        placed.append((row, y, is_first))
        group, y = row.group, y + height
    return placed, y


def _marks(frame: Frame, marks: Mapping[str, float], bottom: int) -> Iterator[str]:
    """Draw a line at each moment, and its words if they have room."""
    free = 0.0
    for words, moment in sorted(marks.items(), key=lambda mark: mark[1]):
        x = frame.x(moment)
        yield f'<path class="mark" d="M{x:.1f} {_TOP}V{bottom}"/>'
        if x >= free and x + len(words) * _DIGIT < frame.width:
            yield text(x + 4, _TOP + 9, words, "start")
            free = x + len(words) * _DIGIT + 8


def _bars(
    frame: Frame, y: int, height: int, row: Lane, colours: Mapping[str, str], other: str
) -> Iterator[str]:
    drawn = float("-inf")
    for span in row.spans:
        x, end = frame.x(span.begin), frame.x(span.end)
        if end < drawn + _NARROW:
            continue
        drawn = end
        width = max(end - x - _NARROW, _NARROW)
        step = "" if span.step is None else f"step {span.step}, "
        told = escape(f"{step}{span.name}, {duration(span.end - span.begin)}")
        yield (
            f'<rect class="{colours.get(span.name, other)}" x="{x:.1f}" y="{y + 1}" '
            f'width="{width:.1f}" height="{height - 2}"><title>{told}</title></rect>'
        )
        if height >= _READABLE and (words := _inside(span, width)):
            yield (
                f'<text class="in" x="{x + width / 2:.1f}" y="{y + height / 2 + 4:.1f}" '
                f'text-anchor="middle">{escape(words)}</text>'
            )


def _inside(span: Span, width: float) -> str:
    """Return the step and the name, or only the step, whichever has room."""
    if span.step is None:
        return ""
    choices = (f"{span.step} {span.name}", f"{span.step}")
    return next((words for words in choices if len(words) * _DIGIT + 4 < width), "")
