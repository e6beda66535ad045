"""Read a run's pace and metrics from the end of its metrics.jsonl."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from verl_hpc.metrics.log import FILE_NAME, Row, parse_row
from verl_hpc.metrics.names import STATUS, STEP_SECONDS, TOKENS
from verl_hpc.metrics.series import mean_seconds, operator_seconds, overlaps
from verl_hpc.runs.logs.read import last_lines

RECENT = 10
"""Number of last steps over which means are taken."""
_TAIL_BYTES = 256 * 1024


@dataclass(frozen=True)
class Figure:
    """The last value of a metric, None if it was NaN or infinite, and its step."""

    value: float | None
    step: int


@dataclass(frozen=True)
class Progress:
    """The last steps of a run, in seconds and tokens."""

    step: int = 0
    """Steps done."""
    seconds: float | None = None
    """Seconds of a mean step among the last ones."""
    num_recent: int = 0
    """Number of steps of the mean."""
    operators: Mapping[str, float] = field(default_factory=dict)
    """Seconds of a mean step by operator, longest first."""
    overlaps: bool = False
    """Whether these are the longest of all ranks, and sum to more than a step."""
    longest_s: float | None = None
    """Longest time of an operator in one of these steps."""
    tokens_per_s: float | None = None
    figures: Mapping[str, Figure] = field(default_factory=dict)
    """Last figures by metric name."""

    def remaining_s(self, total_steps: int | None) -> float | None:
        """Return the seconds until the last step, at this pace."""
        if self.seconds is None or total_steps is None:
            return None
        return max(total_steps - self.step, 0) * self.seconds


def read_progress(run: Path) -> Progress:
    """Return the progress of a run; empty before its first step."""
    rows = read_tail(run / FILE_NAME)
    if not rows:
        return Progress()
    timed = [row for row in rows if row["step"] and isinstance(row.get(STEP_SECONDS), float)]
    recent = timed[-RECENT:]
    seconds = sum(row[STEP_SECONDS] for row in recent)
    tokens = sum(row.get(TOKENS) or 0.0 for row in recent)
    longest = (spent for row in recent for spent in operator_seconds(row).values())
    return Progress(
        step=rows[-1]["step"],
        seconds=seconds / len(recent) if recent else None,
        num_recent=len(recent),
        operators=mean_seconds(recent),
        overlaps=overlaps(recent),
        longest_s=max(longest, default=None),
        tokens_per_s=tokens / seconds if tokens and seconds else None,
        figures=_figures(rows),
    )


def read_tail(path: Path, most_bytes: int = _TAIL_BYTES) -> list[Row]:
    """Return the last rows of a metrics.jsonl, without reading a long file whole each time."""
    return [row for row in map(parse_row, last_lines(path, most_bytes)) if row is not None]


def _figures(rows: Sequence[Row]) -> dict[str, Figure]:
    figures: dict[str, Figure] = {}
    for name in STATUS:
        last = next((row for row in reversed(rows) if name in row), None)
        if last is not None:
            figures[name] = Figure(last[name], last["step"])
    return figures
