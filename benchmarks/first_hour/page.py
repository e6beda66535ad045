"""The page: what is known so far, in Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.figures import FROM, TO, markdown_table
from benchmarks.first_hour.step import Here, Step
from benchmarks.launch import last_lines

REHEARSAL = "**Rehearsal on CPU ranks, tiny shapes: no figure here says anything about a GPU.**"


def page(
    steps: Sequence[Step], records: Mapping[str, Mapping[str, Any]], here: Here, out: Path
) -> str:
    """All steps in a table, then what each has written.

    Args:
        steps: in their order.
        records: by name; empty for a step that was not begun.
        here: what is known of the machine.
        out: directory of logs and results.
    """
    title = "Rehearsal of the first hour on a GPU" if here.rehearse else "The first hour on a GPU"
    rows = [_row(step, records[step.name]) for step in steps]
    parts = [f"# {title}"]
    if here.rehearse:
        parts.append(REHEARSAL)
    parts.append(_machine(here))
    header = ("step, and what it proves", "state", "seconds", "at most")
    parts.append(markdown_table(header, rows))
    for step in steps:
        if records[step.name]:
            parts += _section(step, records[step.name], here, out)
    return "\n\n".join(parts) + "\n"


def _row(step: Step, record: Mapping[str, Any]) -> tuple[str, ...]:
    seconds = record.get("seconds")
    shown = "" if seconds is None else f"{seconds:.0f}"
    state = record.get("state", "")
    return f"`{step.name}`: {step.claim}", state, shown, f"{step.limit_s:.0f}"


def _machine(here: Here) -> str:
    facts = here.facts
    if not facts:
        return "Nothing is known of the machine yet: the step `environment` says it."
    device = facts.get("device") or "no CUDA device"
    return f"Machine: {device}, {facts['cores']} cores, {facts['memory_gib']} GiB."


def _section(step: Step, record: Mapping[str, Any], here: Here, out: Path) -> list[str]:
    mark = " (rehearsal on CPU ranks)" if here.rehearse else ""
    lines = [f"## {step.name}{mark}: {record['state']}", f"{step.claim}."]
    if record["state"] == "not run":
        return [*lines, f"Not run: {record['reason']}."]
    lines.append(f"`{record['command']}`, begun {record['started']} at commit {record['commit']}.")
    written, log = out / f"{step.name}.result.md", out / f"{step.name}.log"
    if written.exists():
        lines.append(written.read_text(encoding="utf-8").replace(FROM, "").replace(TO, "").strip())
    if log.exists() and (record["state"] != "done" or not written.exists()):
        lines.append(f"```\n{last_lines(log, 60)}\n```")
    return lines
