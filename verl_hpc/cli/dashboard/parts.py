"""Parts of a run's page on the dashboard: timeline, late ranks, samples and logs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from html import escape
from pathlib import Path
from urllib.parse import urlencode

from verl_hpc.config.spans import spans
from verl_hpc.errors import ClusterError
from verl_hpc.metrics.samples import sample_steps
from verl_hpc.metrics.samples_view import step_samples
from verl_hpc.metrics.sections import section
from verl_hpc.metrics.text import duration
from verl_hpc.metrics.timeline import step_range
from verl_hpc.metrics.timeline_view import MAX_STEPS, TITLE, newest_steps, timeline_card
from verl_hpc.runs.logs.read import attempt_directory, last_lines, node_logs, parse_line
from verl_hpc.runs.ranks import read_ranks

_COUNTS = (1, 3, 10, MAX_STEPS)
_RANGE = re.compile(r"(\d{1,12})(?:-(\d{1,12}))?")
_MOST_NODES = 8
_MOST_LINES = 100
_TAIL_BYTES = 64 * 1024


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


def late_part(run: Path) -> str:
    """Return which ranks are late; empty if none is, or without ranks.json."""
    ranks = read_ranks(run)
    if ranks is None or not ranks.late:
        return ""
    late, first = ranks.late, ranks.late[0]
    return (
        f'<p class="alert"><b>Late</b> rank {spans([p.rank for p in late])}: rank {first.rank} on '
        f"{escape(first.host)} in {escape(first.operator)} for {duration(first.seconds)}. "
        "<code>python -m verl_hpc hang</code> shows where.</p>"
    )


def samples_link(run: Path, name: str) -> str:
    """Return a line of a run's facts that links to its samples; empty without samples."""
    steps = sample_steps(run)
    if not steps:
        return ""
    words = f"prompts and responses of {len(steps)} {'step' if len(steps) == 1 else 'steps'}"
    return f'<dt>samples</dt><dd><a href="{_address(name)}">{words}</a></dd>'


def samples_part(run: Path, name: str, asked: str) -> str:
    """Return links to the steps, and the groups of the requested one, else of the newest."""
    steps = sample_steps(run)
    if not steps:
        return '<p class="card">This run has no samples.</p>'
    shown = int(asked) if asked.isdecimal() and len(asked) <= 12 else steps[-1]
    links = " ".join(
        f"<b>{step}</b>" if step == shown else f'<a href="{_address(name, step)}">{step}</a>'
        for step in steps
    )
    nothing = f'<p class="card">There are no samples of step {shown}.</p>'
    return f'<p class="pick"><span>step {links}</span></p>{step_samples(run, shown) or nothing}'


def run_link(name: str) -> str:
    """Return a link back to a run's page."""
    return f'<a href="/run?{escape(urlencode({"name": name}))}">{escape(name)}</a>'


def _address(name: str, step: int | None = None) -> str:
    query = {"name": name} | ({} if step is None else {"step": f"{step}"})
    return f"/samples?{escape(urlencode(query))}"


def log_part(run: Path) -> str:
    """Return the ends of the last start's logs, one per node; empty for a run that mpiexec
    started."""
    try:
        attempt = attempt_directory(run)
    except ClusterError:
        return ""
    logs = node_logs(attempt)
    if not logs:
        return ""
    body = "".join(_log(log) for log in logs[:_MOST_NODES])
    if len(logs) > _MOST_NODES:
        body += f"<p>And {len(logs) - _MOST_NODES} more nodes: <code>verl_hpc logs</code>.</p>"
    return section(f"Logs of start {escape(attempt.name)}", body)


def _log(log: Path) -> str:
    lines = tail(log, _MOST_LINES)
    text = escape("\n".join(lines)) or "nothing yet"
    return (
        f'<details open><summary>{escape(log.stem)}</summary><pre class="log" tabindex="0">'
        f"{text}</pre></details>"
    )


def tail(log: Path, most: int) -> list[str]:
    """Return the last lines of a node's log, each with its rank, without a line cut at the
    front."""
    parsed = (parse_line(log.stem, line) for line in last_lines(log, _TAIL_BYTES)[-most:])
    return [f"{'' if line.rank is None else line.rank:>4} {line.text}" for line in parsed]
