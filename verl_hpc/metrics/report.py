"""report.html: what a run did, on one page without further files."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from string import Template
from typing import Any

from verl_hpc.config.regular_file import read_regular, replace_text
from verl_hpc.errors import DataError
from verl_hpc.metrics import sections
from verl_hpc.metrics.log import Row, read_metrics
from verl_hpc.metrics.samples_view import newest_samples
from verl_hpc.metrics.sections import flow_section
from verl_hpc.metrics.series import mean_seconds, timed
from verl_hpc.metrics.timeline_view import TITLE as TIMELINE
from verl_hpc.metrics.timeline_view import newest_steps, timeline_card
from verl_hpc.package import VERSION

FILE_NAME = "report.html"
_TEMPLATE = Path(__file__).with_name(FILE_NAME)
STYLE = Path(__file__).with_name("page.css")
"""Style sheet of report.html and the dashboard."""
PLACED = ("name", "recipe", "state", "total_steps", "config", "num_ranks", "num_nodes")
"""Facts shown elsewhere on the page, or covered by another."""
NUM_LAST_STEPS = 10


def read_facts(run_directory: Path) -> dict[str, Any]:
    """Return the facts that a run has left for its report; empty if it has not ended.

    Raises:
        DataError: they cannot be read.
    """
    path = run_directory / "facts.json"
    try:
        facts = json.loads(read_regular(path))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(
            f"{path}: cannot be read as a JSON file ({error}); delete it and try again"
        ) from None
    if not isinstance(facts, dict):
        raise DataError(f"{path}: cannot be read as a JSON object; delete it and try again")
    return facts


def write_report(run_directory: str | Path, facts: Mapping[str, Any]) -> Path:
    """Write report.html from a run's metrics.jsonl.

    Args:
        facts: facts that metrics lack. `name`, `recipe`, `state`, `total_steps` and `config` (the
            resolved YAML) have their places; all others (layouts, commit, versions ...) are listed
            as they come, a mapping as its pairs.

    Returns:
        The path of report.html.

    Raises:
        DataError: the directory has no metrics.jsonl.
    """
    directory = Path(run_directory)
    rows = read_metrics(directory)
    body = (
        sections.alert(rows),
        sections.overlap_alert(facts.get("evaluation data", {})),
        f'<dl class="headline">{sections.headline(rows)}</dl>',
        f'<div class="charts">{sections.charts(rows)}</div>',
        sections.times(timed(rows)),
        _timeline(directory, rows),
        sections.resharding(rows),
        sections.last_steps(rows[-NUM_LAST_STEPS:]),
        flow_section(directory),
        newest_samples(directory),
        _config(facts),
    )
    name = str(facts.get("name", directory.resolve().name))
    path = directory / FILE_NAME
    replace_text(path, page(name, _subtitle(rows, facts), _facts(facts), "\n".join(body)))
    return path


def page(name: str, subtitle: str, facts: str, body: str) -> str:
    """Return a whole page; all but its name is HTML."""
    return Template(_TEMPLATE.read_text(encoding="utf-8")).substitute(
        name=escape(name),
        subtitle=subtitle,
        facts=facts,
        body=body,
        style=STYLE.read_text(encoding="utf-8"),
        version=VERSION,
    )


def _subtitle(rows: Sequence[Row], facts: Mapping[str, Any]) -> str:
    words = [escape(str(facts[key])) for key in ("recipe", "state") if key in facts]
    if not rows:
        words.append("no step done")
    else:
        of_total = f" of {facts['total_steps']}" if "total_steps" in facts else ""
        words.append(f"step {rows[-1]['step']}{escape(of_total)}")
        words.append(f"{_moment(rows[0])} to {_moment(rows[-1])}")
    return "".join(f"<span>{word}</span>" for word in words)


def _timeline(directory: Path, rows: Sequence[Row]) -> str:
    card = timeline_card(directory, newest_steps(directory), mean_seconds(timed(rows)))
    return sections.section(TIMELINE, card) if card else ""


def _moment(row: Row) -> str:
    return f"{datetime.fromtimestamp(row['time'], UTC):%Y-%m-%d %H:%M} UTC"


def _facts(facts: Mapping[str, Any]) -> str:
    return "".join(
        f"<dt>{escape(key)}</dt><dd>{escape(_plain(value))}</dd>"
        for key, value in facts.items()
        if key not in PLACED
    )


def _plain(value: Any) -> str:
    if isinstance(value, Mapping):
        return "; ".join(f"{key} {_plain(inner)}" for key, inner in value.items())
    return str(value)


def _config(facts: Mapping[str, Any]) -> str:
    if "config" not in facts:
        return ""
    text = escape(facts["config"])
    return f"<details><summary>Resolved configuration</summary><pre>{text}</pre></details>"
