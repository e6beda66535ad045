"""Make the dashboard's pages as HTML: the list of runs, and the parts of one run's page."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from string import Template
from urllib.parse import urlencode

from verl_hpc.cli.dashboard.parts import (
    late_part,
    log_part,
    run_link,
    samples_link,
    samples_part,
    timeline_part,
)
from verl_hpc.cli.list import HEADER, table
from verl_hpc.cli.report_compare import read_compared
from verl_hpc.cli.status import read_status
from verl_hpc.cli.status_text import Status, as_rows, headline
from verl_hpc.config.regular_file import is_regular, read_regular
from verl_hpc.metrics import sections
from verl_hpc.metrics.comparison_view import comparison_body
from verl_hpc.metrics.log import FILE_NAME, Row, parse_row
from verl_hpc.metrics.report import STYLE
from verl_hpc.metrics.sections import FLOW_FILE, flow_section
from verl_hpc.metrics.series import mean_seconds, timed
from verl_hpc.runs.find import named_runs
from verl_hpc.runs.logs.read import Tail
from verl_hpc.runs.status import saved_steps


class MetricsTail:
    """Reads the lines that a run's metrics.jsonl gains; threads may share it.

    Args:
        run: run directory.
    """

    def __init__(self, run: Path) -> None:
        self._path = run / FILE_NAME
        self._lock = threading.Lock()
        self._forget(-1)

    def rows(self) -> list[Row]:
        """Return all whole rows so far; empty without a file."""
        with self._lock:
            try:
                facts = self._path.stat()
                # A run that resumes replaces the file, without the steps that it redoes.
                if facts.st_ino != self._file_id or facts.st_size < self._tail.position:
                    self._forget(facts.st_ino)
                self._rows += filter(None, map(parse_row, self._tail.gained()))
            except OSError:
                self._forget(-1)
            return list(self._rows)

    def _forget(self, file_id: int) -> None:
        self._file_id, self._tail = file_id, Tail(self._path)
        self._rows: list[Row] = []


_SHELL = Path(__file__).with_name("dashboard.html")
_LOOK_EVERY_S = 10.0
"""Least seconds between two searches for run directories, which burden a shared file system."""
_NUM_LAST_STEPS = 10
_ALL_RUNS = '<a href="/">All runs</a>'
PARTS = ("status", "charts", "timeline", "times", "flow", "log")
"""Parts of a run's page, each of which the page refreshes on its own."""
_MOST_BYTES = 16 * 1024**2


@dataclass(frozen=True)
class _File:
    """A file of a run directory that is shown as it is, its label, and its media type."""

    name: str
    label: str
    kind: str = "text/plain"

    def is_in(self, run: Path) -> bool:
        """Whether a run has it: only a regular file is shown, since a link may lead anywhere."""
        path = run / self.name
        return is_regular(path) and path.stat().st_size <= _MOST_BYTES


_FILES = (
    _File("report.html", "report", "text/html"),
    _File("config.yaml", "configuration"),
    _File(FLOW_FILE, "flow"),
    _File("facts.json", "facts"),
)


class Pages:
    """Makes pages about the runs below a directory; threads may share it.

    Args:
        directory: where runs are, or a run itself.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._runs: dict[str, Path] = {}
        self._looked = float("-inf")
        self._tails: dict[Path, MetricsTail] = {}

    def overview(self) -> str:
        """Return the page of all runs."""
        return self._shell("Runs", "", [("runs", {})])

    def run(self, name: str, steps: str = "") -> str:
        """Return the page of one run, with these steps in its timeline, the newest if empty.

        Raises:
            LookupError: there is no run of this name.
        """
        self._find(name)
        query = {"name": name} | ({"steps": steps} if steps else {})
        return self._shell(name, _ALL_RUNS, [(part, query) for part in PARTS])

    def samples(self, name: str, step: str = "") -> str:
        """Return the page of a run's prompts and responses; of the newest step if `step` is empty.

        Raises:
            LookupError: there is no run of this name.
        """
        self._find(name)
        query = {"name": name} | ({"step": step} if step else {})
        above = f"<span>{_ALL_RUNS} / {run_link(name)}</span>"
        return self._shell(f"Samples of {name}", above, [("samples", query)])

    def compare(self, names: Sequence[str]) -> str:
        """Return the page that compares these runs.

        Raises:
            LookupError: fewer than two are named, or there is no run of a name.
            VerlHpcError: a run's files cannot be read.
        """
        if len(names) < 2:
            raise LookupError("choose at least two runs to compare")
        runs = [read_compared(name, self._find(name)) for name in names]
        return self._shell(f"{len(runs)} runs compared", _ALL_RUNS, [], comparison_body(runs))

    def part(self, of: str, query: Mapping[str, str]) -> str:
        """Return one part of a page.

        Raises:
            LookupError: there is no such part, or no run of the query's name.
        """
        if of == "runs":
            return self._list()
        name = query.get("name", "")
        makers: dict[str, Callable[[Path], str]] = {
            "status": lambda run: self._status(run, name),
            "charts": self._charts,
            "times": self._times,
            "timeline": lambda run: timeline_part(
                run, name, query.get("steps", ""), self._seconds(run)
            ),
            "samples": lambda run: samples_part(run, name, query.get("step", "")),
            "flow": flow_section,
            "log": log_part,
        }
        if of not in makers:
            raise LookupError("there is no such part of a page")
        return makers[of](self._find(name))

    def file(self, name: str, file: str) -> tuple[str, str]:
        """Return the text and media type of a file that a run's page links to.

        Raises:
            LookupError: there is no such run, or it has no such file.
        """
        run = self._find(name)
        for one in _FILES:
            if one.name == file and one.is_in(run):
                return read_regular(run / file).decode("utf-8", errors="replace"), one.kind
        raise LookupError("the run has no such file to show")

    @staticmethod
    def style(own: Path) -> str:
        """Return the style sheet: that of reports, and the dashboard's additions."""
        return STYLE.read_text("utf-8") + own.read_text("utf-8")

    def _find(self, name: str) -> Path:
        """Return a run by its name in the list, so that a word of the address never becomes a
        path."""
        known = self._known()
        if name not in known:
            raise LookupError("there is no such run")
        return known[name]

    def _known(self) -> dict[str, Path]:
        now = time.monotonic()
        if now - self._looked > _LOOK_EVERY_S:
            self._runs, self._looked = named_runs(self._directory), now
        return self._runs

    def _rows(self, run: Path) -> list[Row]:
        return self._tails.setdefault(run, MetricsTail(run)).rows()

    def _shell(
        self, title: str, above: str, parts: list[tuple[str, Mapping[str, str]]], body: str = ""
    ) -> str:
        """Return a page with its parts, which a script then keeps up to date, behind what stays."""
        body += "".join(
            f'<div id="{of}" data-src="/part?{escape(urlencode({"of": of, **query}))}">'
            f"{self.part(of, query)}</div>"
            for of, query in parts
        )
        text = _SHELL.read_text("utf-8")
        return Template(text).substitute(title=escape(title), above=above, body=body)

    def _list(self) -> str:
        rows = table(self._directory, self._known(), time.time())
        if not rows:
            return f'<p class="card">No runs in {escape(str(self._directory))} yet.</p>'
        head = "".join(f"<th>{t}</th>" for t in HEADER)
        body = "".join(_line(row) for row in rows)
        return (
            f'<form action="/compare"><div class="wide"><table class="runs"><thead><tr>{head}</tr>'
            f"</thead><tbody>{body}</tbody></table></div>"
            "<p><button>Compare the chosen runs</button></p></form>"
        )

    def _status(self, run: Path, name: str) -> str:
        status = read_status(run, time.time())
        state = status.state.name
        detail = headline(status).removeprefix(state).removeprefix(":")
        rows = self._rows(run)
        listed = [("directory", str(run.resolve())), *as_rows(status)]
        if steps := saved_steps(run):
            listed.append(("checkpoints", f"steps {', '.join(map(str, steps))}"))
        facts = "".join(f"<dt>{label}</dt><dd>{escape(text)}</dd>" for label, text in listed)
        facts += samples_link(run, name) + _links(name, run)
        return (
            f'<p class="subtitle">{_state(state)} {escape(detail)}</p>'
            f"{_bar(status)}"
            f'<dl class="facts">{facts}</dl>{late_part(run)}{sections.alert(rows)}'
            f'<dl class="headline">{sections.headline(rows)}</dl>'
        )

    def _charts(self, run: Path) -> str:
        drawn = sections.charts(self._rows(run))
        return f'<div class="charts">{drawn}</div>' if drawn else ""

    def _seconds(self, run: Path) -> dict[str, float]:
        """Return the seconds of a mean step by operator."""
        return mean_seconds(timed(self._rows(run)))

    def _times(self, run: Path) -> str:
        rows = self._rows(run)
        return sections.times(timed(rows)) + sections.last_steps(rows[-_NUM_LAST_STEPS:])


def _line(cells: tuple[str, ...]) -> str:
    name, state, *more = cells
    rest = "".join(f"<td>{escape(cell)}</td>" for cell in more)
    box = f'<input type="checkbox" name="run" value="{escape(name)}" aria-label="compare"> '
    return f"<tr><th>{box}{run_link(name)}</th><td>{_state(state)}</td>{rest}</tr>"


def _state(name: str) -> str:
    """Return a state with its coloured mark and its word, for those who see no colours."""
    kinds = {"running": "good", "saving": "good", "failed": "bad", "no heartbeat": "bad"}
    kinds |= {"finished": "done", "goal reached": "done"}
    return f'<span class="state {kinds.get(name, "still")}">{escape(name)}</span>'


def _links(name: str, run: Path) -> str:
    links = (
        f'<a href="/file?{escape(urlencode({"name": name, "file": file.name}))}">{file.label}</a>'
        for file in _FILES
        if file.is_in(run)
    )
    text = ", ".join(links)
    return f"<dt>files</dt><dd>{text}</dd>" if text else ""


def _bar(status: Status) -> str:
    if not status.total_steps:
        return ""
    done = min(status.progress.step, status.total_steps)
    return (
        f'<progress aria-label="steps done" value="{done}" max="{status.total_steps}"></progress>'
    )
