"""Show the last log lines of a run's ranks on the dashboard."""

from __future__ import annotations

from html import escape
from pathlib import Path

from verl_hpc.errors import ClusterError
from verl_hpc.metrics.sections import section
from verl_hpc.runs.logs.read import attempt_directory, last_lines, node_logs, parse_line

_MOST_NODES = 8
_MOST_LINES = 100
_TAIL_BYTES = 64 * 1024


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
