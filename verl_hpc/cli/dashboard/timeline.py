"""Show the timeline of a run on the dashboard: some steps, and links to others."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from html import escape
from pathlib import Path
from urllib.parse import urlencode

from verl_hpc.metrics.sections import section
from verl_hpc.metrics.timeline_reader import step_range
from verl_hpc.metrics.timeline_view import MAX_STEPS, TITLE, newest_steps, timeline_card

_COUNTS = (1, 3, 10, MAX_STEPS)
_RANGE = re.compile(r"(\d{1,12})(?:-(\d{1,12}))?")


def timeline_part(run: Path, name: str, asked: str, seconds: Mapping[str, float]) -> str:
    """Return lanes of the ranks; empty without a timeline.

    Args:
        run: run directory.
        name: name of the run in the list, for links.
        asked: steps from an address, '7' or '7-9'; anything else shows the newest few.
        seconds: seconds of a mean step by operator, by which other parts of the page choose
            colours.
    """
    known = step_range(run)
    if known is None:
        return ""
    steps = parse_steps(asked)
    links = _links(name, steps, newest_steps(run), *known)
    card = timeline_card(run, steps or newest_steps(run), seconds)
    nothing = '<p class="card">No rank has a line of these steps.</p>'
    return section(TITLE, f'<p class="pick">{links}</p>{card or nothing}')


def parse_steps(asked: str) -> range | None:
    """Return the steps that an address names, at most `MAX_STEPS`; None if it names none."""
    match = _RANGE.fullmatch(asked)
    if match is None:
        return None
    first, last = int(match[1]), int(match[2] or match[1])
    return range(first, min(last + 1, first + MAX_STEPS)) if first <= last else None


def _links(name: str, asked: range | None, newest: range, oldest_step: int, last_step: int) -> str:
    shown = asked or newest
    count = len(shown)
    what = f"<b>{_words(shown)}</b> of {oldest_step}-{last_step}"
    moves = []
    if shown[0] > oldest_step:
        first = max(shown[0] - count, oldest_step)
        moves.append(_link(name, range(first, first + count), "earlier"))
    if shown[-1] < last_step:
        moves.append(_link(name, range(shown[0] + count, shown[-1] + count + 1), "later"))
    if asked is not None:
        moves.append(_link(name, None, "newest"))
    sizes = ", ".join(_sizes(name, shown, oldest_step))
    return f"<span>{what}</span><span>{' '.join(moves)}</span><span>show {sizes}</span>"


def _sizes(name: str, shown: range, oldest_step: int) -> Iterator[str]:
    """Yield links that show other numbers of steps, up to the last one shown."""
    for count in _COUNTS:
        steps = range(max(shown[-1] - count + 1, oldest_step), shown[-1] + 1)
        yield f"<b>{count}</b>" if len(shown) == count else _link(name, steps, f"{count}")


def _words(steps: range) -> str:
    return f"step {steps[0]}" if len(steps) == 1 else f"steps {steps[0]}-{steps[-1]}"


def _link(name: str, steps: range | None, words: str) -> str:
    query = {"name": name} | ({} if steps is None else {"steps": f"{steps[0]}-{steps[-1]}"})
    return f'<a href="/run?{escape(urlencode(query))}#timeline">{words}</a>'
