"""ranks.json: where every rank of a run is, for readers on a login node.

Rank 0's watchdog replaces it every few seconds. It tells the process of each rank, which `hang`
and `attach` need, and its last operators.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from verl_hpc.config.regular_file import read_json

FILE = "ranks.json"
MOST_HISTORIES = 64
"""Ranks whose last operators are told, from rank 0: the file of a large run stays small."""
HISTORY = 64
"""Operators of a rank that are told."""


@dataclass(frozen=True)
class Progress:
    """Where one rank is: the `count`-th operator it entered, `seconds` ago."""

    rank: int
    count: int
    operator: str
    seconds: float
    host: str = ""
    pid: int = 0
    num_waits: int = 0
    """Times it has begun to wait for other ranks in the control plane; the same order on all."""
    waited_s: float = 0.0
    """Since it began the wait that it is in; 0 if it is in none."""
    silent_s: float = 0.0
    """Since the rank has published this; a Python thread of its own does."""
    history: tuple[tuple[str, float], ...] = ()
    """Its last operators with the times they began at, by its node's clock; the last is running."""

    @property
    def position(self) -> tuple[int, int]:
        """Grows as the rank advances; all ranks pass the same values."""
        return self.count, self.num_waits


@dataclass(frozen=True)
class Ranks:
    """All ranks of a run at one moment."""

    time: float
    """Seconds since the epoch, by the clock of rank 0's node."""
    interval_s: float
    """Between two of these."""
    late_after_s: float
    job_id: str | None
    """Slurm's; None for a run that mpiexec started."""
    ranks: tuple[Progress, ...]

    @property
    def late(self) -> list[Progress]:
        return late_ranks(self.ranks, self.late_after_s)


def late_ranks(progress: Sequence[Progress], late_after_s: float) -> list[Progress]:
    """Ranks that hold up the others, the furthest behind first.

    A rank is late when others have entered a later operator and it has been in its own for longer
    than `late_after_s`, or when others have waited for longer than that where it has not come to.
    When all are equally far, none is.
    """
    ahead = max(p.count for p in progress)
    awaited = max((p.position for p in progress if p.waited_s > late_after_s), default=(0, 0))
    late = [
        p
        for p in progress
        if (p.count < ahead and p.seconds > late_after_s) or p.position < awaited
    ]
    return sorted(late, key=lambda p: (p.position, p.rank))


def write_ranks(run_directory: Path, ranks: Ranks) -> None:
    """Replace the file whole.

    Raises:
        OSError: the directory cannot be written.
    """
    rows = [
        [
            p.rank,
            p.count,
            p.operator,
            round(p.seconds, 1),
            p.host,
            p.pid,
            p.num_waits,
            round(p.waited_s, 1),
            round(p.silent_s, 1),
            [[name, round(began, 2)] for name, began in p.history],
        ]
        for p in ranks.ranks
    ]
    found = {
        "time": ranks.time,
        "interval_s": ranks.interval_s,
        "late_after_s": ranks.late_after_s,
        "job_id": ranks.job_id,
        "ranks": rows,
    }
    target = run_directory / FILE
    fresh = target.with_suffix(".new")
    fresh.write_text(json.dumps(found, separators=(",", ":")) + "\n", encoding="utf-8")
    fresh.replace(target)


def read_ranks(run_directory: Path) -> Ranks | None:
    """The last word about all ranks; None if there is none, or none that can be read."""
    return read_json(run_directory / FILE, _parse)


def _parse(found: Mapping[str, Any]) -> Ranks:
    return Ranks(
        time=float(found["time"]),
        interval_s=float(found["interval_s"]),
        late_after_s=float(found["late_after_s"]),
        job_id=None if found["job_id"] is None else str(found["job_id"]),
        ranks=tuple(_progress(*row) for row in found["ranks"]),
    )


def _progress(
    rank: Any, count: Any, operator: Any, seconds: Any, host: Any, pid: Any, *more: Any
) -> Progress:
    num_waits, waited, silent, history = more
    return Progress(
        rank=int(rank),
        count=int(count),
        operator=str(operator),
        seconds=float(seconds),
        host=str(host),
        pid=int(pid),
        num_waits=int(num_waits),
        waited_s=float(waited),
        silent_s=float(silent),
        history=tuple((str(name), float(began)) for name, began in history),
    )


def shown(numbers: Sequence[int]) -> str:
    """Rank numbers in short: '0-2, 5'."""
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and number == parts[-1][-1] + 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return ", ".join(f"{p[0]}-{p[-1]}" if len(p) > 1 else f"{p[0]}" for p in parts)
