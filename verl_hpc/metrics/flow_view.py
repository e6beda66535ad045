"""The data flow of a run's step, as HTML: which operators run where, with which roles."""

from __future__ import annotations

from html import escape
from pathlib import Path

from verl_hpc.config.regular_file import is_regular, read_regular
from verl_hpc.metrics.sections import section
from verl_hpc.metrics.text import visible

FILE_NAME = "flow.txt"
_GRAPH = "\nflowchart "
"""Beginning of the Mermaid graph, which follows the text in the file."""
_MOST_BYTES = 100_000


def flow_section(run_directory: Path) -> str:
    """Return the text of a run's flow.txt as a section; empty without one."""
    path = run_directory / FILE_NAME
    try:
        if not is_regular(path) or path.stat().st_size > _MOST_BYTES:
            return ""
        text = read_regular(path).decode("utf-8", errors="replace")
    except OSError:
        return ""
    told = visible(text.partition(_GRAPH)[0].rstrip())
    return section("Data flow of a step", f'<div class="card"><pre>{escape(told)}</pre></div>')
