"""Show a run on the terminal: a live view for people, lines for log files."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping

from rich.bar import Bar
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from verl_hpc.metrics.names import OVERLAP, RESHARD_RECEIVED, SCORE, STEP_SECONDS, SUMMARY
from verl_hpc.metrics.series import operator_seconds, overlaps
from verl_hpc.metrics.text import duration, number, size, sparkline


class Pace:
    """Estimates the time left by the mean of the last 20 steps."""

    def __init__(self, total_steps: int) -> None:
        self._total_steps = total_steps
        self._recent: deque[float] = deque(maxlen=20)

    def remaining(self, step: int, values: Mapping[str, float]) -> float | None:
        """Return the seconds to go after `step`; None while no step has been timed."""
        if step and STEP_SECONDS in values:  # step 0 only evaluates
            self._recent.append(values[STEP_SECONDS])
        if not self._recent:
            return None
        return (self._total_steps - step) * sum(self._recent) / len(self._recent)


class LineView:
    """Prints one plain line per step on stdout.

    Args:
        total_steps: step at which the run is done.
        columns: width of the terminal. A longer line leaves out its operators, then the least
            important figures; None does not limit lines, for log files.
    """

    def __init__(self, total_steps: int, columns: int | None = None) -> None:
        self._total_steps = total_steps
        self._columns = columns
        self._pace = Pace(total_steps)

    def write(self, step: int, values: Mapping[str, float]) -> None:
        width = len(str(self._total_steps))
        first = f"step {step:>{width}}/{self._total_steps}"
        figures = [f"{label} {number(values[name])}" for name, label in _present(values)]
        if RESHARD_RECEIVED in values:
            figures.append(f"resharded {size(values[RESHARD_RECEIVED])}")
        eta = _eta(self._pace.remaining(step, values))
        spent = duration(values[STEP_SECONDS]) if STEP_SECONDS in values else ""
        whole = f"{spent} ({_longest(values)})" if spent else ""
        forms = [_line(first, *figures, whole, eta)]
        forms += [
            _line(first, *figures[:count], spent, eta) for count in range(len(figures), -1, -1)
        ]
        most = self._columns or len(forms[0])
        print(next((form for form in forms if len(form) <= most), forms[-1]), flush=True)

    def close(self) -> None:
        """Do nothing: there is nothing to release."""


def _line(*words: str) -> str:
    return " | ".join(filter(None, words))


def _eta(seconds: float | None) -> str:
    """Return the time left in words; empty if no step has been timed, and after the last."""
    return f"eta {duration(seconds)}" if seconds else ""


def _present(values: Mapping[str, float]) -> list[tuple[str, str]]:
    return [(name, label) for name, label in SUMMARY.items() if name in values]


def _longest(values: Mapping[str, float]) -> str:
    """Return the three longest operators: 'rollout 62%, update_actor 30%, reward 5%'; in seconds if
    they overlap."""
    seconds = operator_seconds(values)
    longest = sorted(seconds, key=seconds.__getitem__, reverse=True)[:3]
    if overlaps([values]):
        parts = ", ".join(f"{name} {duration(seconds[name])}" for name in longest)
        return f"{OVERLAP}: {parts}"
    return ", ".join(f"{name} {seconds[name] / values[STEP_SECONDS]:.0%}" for name in longest)


class LiveView:
    """A panel at the foot of the terminal that redraws itself twice a second."""

    def __init__(self, console: Console, title: str, total_steps: int, first_step: int = 0) -> None:
        self._title = Text(title)
        self._total_steps = total_steps
        self._step = first_step
        self._pace = Pace(total_steps)
        self._eta: float | None = None
        self._stage: tuple[str, float] | None = ("starting", time.monotonic())
        self._latest: dict[str, float] = {}
        self._scores: deque[float] = deque(maxlen=30)
        self._figures: RenderableType = ""
        self._live = Live(console=console, refresh_per_second=2, get_renderable=self._panel)
        self._live.start()
        # MPI_Abort leaves no time to show a hidden cursor again.
        console.show_cursor(True)

    def stage(self, name: str) -> None:
        self._stage = (name, time.monotonic())

    def write(self, step: int, values: Mapping[str, float]) -> None:
        self._step = step
        self._eta = self._pace.remaining(step, values)
        self._latest.update(values)
        if SCORE in values:
            self._scores.append(values[SCORE])
        columns = Table.grid(padding=(0, 4))
        columns.add_row(self._metrics(), _times(values))
        self._figures = columns

    def close(self) -> None:
        self._stage = None
        self._live.stop()

    def _panel(self) -> RenderableType:
        """Draw the panel, in Live's own thread: it reads attributes that `write` replaces whole."""
        head = Table.grid(padding=(0, 2))
        head.add_row(
            f"step {self._step}/{self._total_steps}",
            ProgressBar(self._total_steps, self._step, width=30, complete_style="cyan"),
            _eta(self._eta),
            *_stage_cells(self._stage),
        )
        return Panel(Group(head, "", self._figures), title=self._title, title_align="left")

    def _metrics(self) -> Table:
        table = Table.grid(padding=(0, 2))
        for name, label in _present(self._latest):
            trend = sparkline(self._scores) if name == SCORE else ""
            table.add_row(f"[dim]{label}", number(self._latest[name]), f"[cyan]{trend}")
        if RESHARD_RECEIVED in self._latest:
            table.add_row("[dim]resharded", size(self._latest[RESHARD_RECEIVED]), "")
        return table


def _stage_cells(stage: tuple[str, float] | None) -> tuple[RenderableType, ...]:
    if stage is None:
        return ()
    name, since = stage
    return Text(name, "bold"), duration(time.monotonic() - since)


def _times(values: Mapping[str, float]) -> Table:
    """Return seconds by operator as bars, in the order they ran."""
    table = Table.grid(padding=(0, 2))
    table.title = OVERLAP if overlaps([values]) else None
    seconds = operator_seconds(values)
    longest = max(seconds.values(), default=0.0)
    for name, spent in seconds.items():
        table.add_row(Text(name, "dim"), duration(spent), Bar(longest, 0, spent, width=24))
    return table
