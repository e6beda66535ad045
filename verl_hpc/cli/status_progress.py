"""How fast a run goes and how well, from the end of its metrics.jsonl."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from verl_hpc.metrics.log import FILE_NAME, Row
from verl_hpc.metrics.names import (
    OLD_POLICY_KL,
    PAIR_ACCURACY,
    PAIR_LOSS,
    PREFERENCE_ACCURACY,
    PREFERENCE_LOSS,
    REFERENCE_KL,
    REFERENCE_KL_PENALTY,
    SCORE,
    SFT_LOSS,
    STEP_SECONDS,
    TEACHER_REVERSE_KL,
    TOKENS,
    VALIDATION,
)
from verl_hpc.metrics.series import mean_seconds, operator_seconds, overlaps
from verl_hpc.runs.logs.read import last_lines

RECENT = 10
"""Steps that means are over."""
SHOWN: Mapping[str, str] = {
    SCORE: "reward",
    VALIDATION: "val score",
    SFT_LOSS: "loss",
    PAIR_LOSS: "loss",
    PAIR_ACCURACY: "accuracy",
    PREFERENCE_LOSS: "loss",
    PREFERENCE_ACCURACY: "accuracy",
    REFERENCE_KL: "kl",
    REFERENCE_KL_PENALTY: "kl",
    TEACHER_REVERSE_KL: "teacher kl",
    OLD_POLICY_KL: "ppo_kl",
}
"""Metrics that tell how a run goes, with short labels."""
_TAIL_BYTES = 256 * 1024


@dataclass(frozen=True)
class Figure:
    """The last value of a metric, and its step; None where it was NaN or infinite."""

    value: float | None
    step: int


@dataclass(frozen=True)
class Progress:
    """The last steps of a run, in seconds and tokens."""

    step: int = 0
    """Steps done."""
    seconds: float | None = None
    """Of a mean step among the last."""
    num_recent: int = 0
    """Steps that the mean is over."""
    operators: Mapping[str, float] = field(default_factory=dict)
    """Seconds of a mean step by operator, longest first."""
    overlaps: bool = False
    """Whether these are the longest of all ranks, and sum to more than a step."""
    longest_s: float | None = None
    """The longest that an operator took in one of these steps."""
    tokens_per_s: float | None = None
    figures: Mapping[str, Figure] = field(default_factory=dict)
    """By metric name."""

    def remaining_s(self, total_steps: int | None) -> float | None:
        """Seconds until the last step, at this pace."""
        if self.seconds is None or total_steps is None:
            return None
        return max(total_steps - self.step, 0) * self.seconds


def read_progress(run: Path) -> Progress:
    """The progress of a run; one that has done nothing has an empty one."""
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
        operators=mean_seconds(recent) if recent else {},
        overlaps=overlaps(recent),
        longest_s=max(longest, default=None),
        tokens_per_s=tokens / seconds if tokens and seconds else None,
        figures=_figures(rows),
    )


def read_tail(path: Path, most_bytes: int = _TAIL_BYTES) -> list[Row]:
    """The last rows of a metrics.jsonl; a file of days is not read again and again in whole."""
    return [row for row in map(parse_row, last_lines(path, most_bytes)) if row is not None]


def parse_row(line: bytes) -> Row | None:
    """One line of a metrics.jsonl; None if it is cut short."""
    try:
        row = json.loads(line)
    except ValueError:
        return None
    return row if isinstance(row, dict) and isinstance(row.get("step"), int) else None


def _figures(rows: Sequence[Row]) -> dict[str, Figure]:
    found: dict[str, Figure] = {}
    for name in SHOWN:
        last = next((row for row in reversed(rows) if name in row), None)
        if last is not None:
            found[name] = Figure(last[name], last["step"])
    return found
