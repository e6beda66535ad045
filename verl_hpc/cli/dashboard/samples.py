"""Show the samples of a run on the dashboard: the steps with samples, and those of one step."""

from __future__ import annotations

from html import escape
from pathlib import Path
from urllib.parse import urlencode

from verl_hpc.metrics.samples import sample_steps
from verl_hpc.metrics.samples_view import step_samples


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
