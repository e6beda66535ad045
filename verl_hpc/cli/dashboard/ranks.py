"""Show the last operators of each rank on the dashboard."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from itertools import pairwise
from pathlib import Path

from verl_hpc.config.spans import spans
from verl_hpc.metrics.lanes import Lane, Span, lanes, seconds_by_name
from verl_hpc.metrics.sections import key, operator_colours, section
from verl_hpc.metrics.series import OTHER
from verl_hpc.metrics.text import duration
from verl_hpc.runs.ranks import Progress, Ranks, read_ranks

_TITLE = "Operators by rank"
_MOST_SECONDS = 600.0
"""Longest time shown, so that a long wait does not squeeze everything else."""


def ranks_part(run: Path, seconds: Mapping[str, float]) -> str:
    """Return lanes of the ranks, and those that are late; empty without ranks.json.

    Args:
        run: run directory.
        seconds: seconds of a mean step by operator, longest first, by which other parts of the page
            choose colours; empty before the first step is done.
    """
    ranks = read_ranks(run)
    if ranks is None:
        return ""
    rows = {_name(p): _spans(p, ranks.time) for p in ranks.ranks if p.history}
    rows = {name: spans for name, spans in rows.items() if spans}
    if not rows:
        return ""
    spent = seconds_by_name([span for spans in rows.values() for span in spans])
    colours = operator_colours(seconds or spent)
    used = {name: colour for name, colour in colours.items() if name in spent or name == OTHER}
    drawn = lanes(
        _TITLE, [Lane(name, spans) for name, spans in rows.items()], colours, colours[OTHER]
    )
    note = "Seconds before rank 0 looked; a lane ends with the rank's last word."
    if len(rows) < len(ranks.ranks):
        note += f" The first {len(rows)} of {len(ranks.ranks)} ranks."
    body = f'{_late(ranks)}<div class="card">{drawn}{key(used)}<p>{note}</p></div>'
    return section(_TITLE, body)


def _name(progress: Progress) -> str:
    return f"{progress.rank}"


def _spans(progress: Progress, now: float) -> list[Span]:
    """Return a rank's operators until its last published position, in seconds from now, none
    positive."""
    ends = [*(began for _, began in progress.history), now - progress.silent_s]
    names = [name for name, _ in progress.history]
    spans = []
    for name, (begin, end) in zip(names, pairwise(ends), strict=True):
        begin = max(begin - now, -_MOST_SECONDS)
        if end - now > begin:
            spans.append(Span(name, begin, min(end - now, 0.0)))
    return spans


def _late(ranks: Ranks) -> str:
    late = ranks.late
    if not late:
        return ""
    first = late[0]
    return (
        f'<p class="alert"><b>Late</b> rank {spans([p.rank for p in late])}: rank {first.rank} on '
        f"{escape(first.host)} in {escape(first.operator)} for {duration(first.seconds)}. "
        "<code>python -m verl_hpc hang</code> shows where.</p>"
    )
