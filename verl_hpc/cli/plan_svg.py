"""Draw a plan: memory of every phase as stacked bars, and a step's operators over time.

The result is an SVG file without a separate style sheet.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from verl_hpc.cli.plan_text import COLOURS, by_kind
from verl_hpc.planner.memory.phase import GIB
from verl_hpc.planner.plan import Plan
from verl_hpc.planner.timing.schedule import Span

_WIDTH, _LEFT, _RIGHT = 900, 170, 70
_ROW, _BAR, _TOP = 24, 16, 64
"""Distance between bars, height of a bar, and space above the first, in pixels."""
_SPAN_COLOURS = (
    *("#1b9e77", "#1f77b4", "#6a4fb3", "#d95f02", "#c2185b"),
    *("#8c6d1f", "#17a2b8", "#7f7f7f"),
)
_NARROW = 0.004
"""Share of a step below which operators have no bar and no colour."""
_STYLE = (
    "svg{background:#fff;font:12px sans-serif}text{fill:#444}"
    ".title{font-size:14px;font-weight:bold}.limit{stroke:#c0392b;stroke-width:2}"
    ".grid{stroke:#e3e2de}.bad{fill:#c0392b}"
)
_AREA = _WIDTH - _LEFT - _RIGHT


def as_svg(plan: Plan) -> str:
    """Return the text of an SVG file."""
    parts, height = _memory(plan)
    if plan.fits:
        more, height = _step(plan, height + 30)
        parts += more
    title = escape(f"{plan.config.name}: memory and time as planned")
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img" '
        f'aria-label="{title}">\n<style>{_STYLE}</style>\n{body}\n</svg>\n'
    )


def _memory(plan: Plan) -> tuple[list[str], int]:
    """Return the bars, and where they end."""
    phases = plan.ledger.all_phases
    hardware = plan.ledger.hardware
    limit = phases[0].limit_bytes
    most = 1.04 * max([*(phase.device_bytes for phase in phases), limit or 0])
    bottom = _TOP + _ROW * len(phases)
    words = f"{plan.config.name} on {plan.num_nodes} x {hardware.ranks_per_node} "
    parts = [
        _text(10, 20, f"{words}{hardware.kind.name}: device memory, fullest rank", "title"),
        *_legend(list(COLOURS.items()), 42),
        *_grid(most / GIB, _TOP - 6, bottom, "GiB"),
    ]
    for row, phase in enumerate(phases):
        y = _TOP + _ROW * row
        label = f"{phase.title}" + ("" if phase.fits else " !")
        parts.append(_text(_LEFT - 8, y + 12, label, "" if phase.fits else "bad", "end"))
        x = float(_LEFT)
        for kind, size in by_kind(phase).items():
            if size:
                width = _AREA * size / most
                hint = f"{phase.title}, rank {phase.rank}: {kind} {size / GIB:.2f} GiB"
                parts.append(_bar(x, y, width, COLOURS[kind], hint))
                x += width
        parts.append(_text(x + 5, y + 12, f"{phase.device_bytes / GIB:.1f}"))
    if limit:
        x = _LEFT + _AREA * limit / most
        parts.append(f'<path class="limit" d="M{x:.1f} {_TOP - 6}V{bottom}"/>')
        parts.append(_text(x, _TOP - 10, f"{limit / GIB:.1f}", "", "middle"))
    return parts, bottom + 20


def _step(plan: Plan, top: int) -> tuple[list[str], int]:
    """Return operators from left to right, a row for each placement, and where they end."""
    step = plan.step
    spans = [s for s in step.spans if s.stop - s.start > _NARROW * step.seconds]
    places = list(dict.fromkeys(span.placement for span in spans if span.placement != "all"))
    colours = {
        name: _SPAN_COLOURS[number % len(_SPAN_COLOURS)]
        for number, name in enumerate(dict.fromkeys(span.operator for span in spans))
    }
    first = top + _TOP
    bottom = first + _ROW * len(places)
    words = f"A step of {step.text}: {step.tokens_per_second:,.0f} tokens/s"
    hours = "" if plan.gpu_hours is None else f", {plan.gpu_hours:,.0f} GPU-hours in all"
    parts = [
        _text(10, top + 20, words + hours, "title"),
        *_legend(list(colours.items()), top + 42),
        *_grid(step.seconds, first - 6, bottom, "s"),
        *(
            _text(_LEFT - 8, first + _ROW * row + 12, name, "", "end")
            for row, name in enumerate(places)
        ),
    ]
    for span in spans:
        rows = range(len(places)) if span.placement == "all" else [places.index(span.placement)]
        parts += [_span(span, step.seconds, first + _ROW * row, colours) for row in rows]
    return parts, bottom + 20


def _span(span: Span, seconds: float, y: float, colours: dict[str, str]) -> str:
    x, width = _LEFT + _AREA * span.start / seconds, _AREA * (span.stop - span.start) / seconds
    hint = f"{span.operator}: {span.stop - span.start:.2f} s from {span.start:.2f}"
    return _bar(x, y, width, colours[span.operator], hint)


def _legend(entries: Sequence[tuple[str, str]], y: float) -> Iterator[str]:
    x = float(_LEFT)
    for name, colour in entries:
        yield f'<rect x="{x:.0f}" y="{y - 10}" width="11" height="11" fill="{colour}"/>'
        yield _text(x + 15, y, name)
        x += 15 + 7 * len(name) + 12


def _grid(most: float, top: float, bottom: float, unit: str) -> Iterator[str]:
    step = _round_step(most)
    for number in range(int(most / step) + 1):
        x = _LEFT + _AREA * number * step / most
        yield f'<path class="grid" d="M{x:.1f} {top}V{bottom}"/>'
        last = (number + 1) * step > most
        yield _text(x, bottom + 14, f"{number * step:g}{f' {unit}' if last else ''}", "", "middle")


def _round_step(most: float) -> float:
    """Return a distance of 1, 2 or 5 times a power of ten that gives 4 to 10 marks."""
    power = 10.0 ** len(str(int(most))) / 100 if most >= 1 else 0.01
    return next(f * power for f in (1, 2, 5, 10, 20, 50, 100) if most / (f * power) <= 8)


def _bar(x: float, y: float, width: float, colour: str, hint: str) -> str:
    return (
        f'<rect x="{x:.1f}" y="{y}" width="{max(width, 0.5):.1f}" height="{_BAR}" '
        f'fill="{colour}"><title>{escape(hint)}</title></rect>'
    )


def _text(x: float, y: float, words: str, kind: str = "", anchor: str = "start") -> str:
    of_kind = f' class="{kind}"' if kind else ""
    return f'<text x="{x:.1f}" y="{y:.1f}"{of_kind} text-anchor="{anchor}">{escape(words)}</text>'
