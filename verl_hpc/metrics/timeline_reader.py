"""Read intervals of a run's timeline, while its ranks may still write."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from verl_hpc.runs.logs.read import last_lines
from verl_hpc.runs.records import as_record

DIRECTORY = "timeline"
_NAME = re.compile(r"rank_(\d{5,9})\.jsonl")
_STEP = re.compile(rb'\{"step": (\d{1,12}),')
_MOST_FILES = 1024
_MOST_BYTES = 1_000_000
"""Bytes that are read at the end of a file; a rank's own has fewer (`timeline.MAX_BYTES`)."""


@dataclass(frozen=True)
class Interval:
    """Operator of a rank from `start` to `stop`, in seconds since the epoch by its node's clock."""

    rank: int
    step: int
    operator: str
    placement: str
    start: float
    stop: float


def file_of(run_directory: Path, rank: int) -> Path:
    """Return the file for a rank's intervals."""
    return run_directory / DIRECTORY / f"rank_{rank:05d}.jsonl"


def rank_files(run_directory: Path) -> list[tuple[int, Path]]:
    """Return the ranks that have a file, in order."""
    try:
        files = [
            (_NAME.fullmatch(path.name), path) for path in (run_directory / DIRECTORY).iterdir()
        ]
    except OSError:
        return []
    return sorted((int(name[1]), path) for name, path in files if name is not None)[:_MOST_FILES]


def read_timeline(run_directory: Path, steps: Iterable[int] | None) -> list[Interval]:
    """Return the intervals of some steps, or of all, in order of rank and time.

    Lines that are torn or malformed are left out, and so are files that are not regular.
    """
    wanted = None if steps is None else frozenset(steps)
    intervals = [
        interval
        for rank, path in rank_files(run_directory)
        for interval in _intervals(rank, last_lines(path, _MOST_BYTES), wanted)
    ]
    return sorted(intervals, key=lambda interval: (interval.rank, interval.start, interval.stop))


def step_range(run_directory: Path) -> tuple[int, int] | None:
    """Return the oldest and the newest step of any rank; None without a timeline."""
    files = [(rank, last_lines(path, _MOST_BYTES)) for rank, path in rank_files(run_directory)]
    # The last line may be torn.
    ends = [i.step for rank, lines in files for i in _intervals(rank, [*lines[:1], *lines[-2:]])]
    return (min(ends), max(ends)) if ends else None


def read_lines(path: Path) -> list[tuple[int, str]]:
    """Return all lines of one rank's file that are intervals, each with its step and its line
    break."""
    text = ((line, _interval(0, line)) for line in last_lines(path, _MOST_BYTES))
    return [(i.step, line.decode("ascii") + "\n") for line, i in text if i is not None]


def _intervals(
    rank: int, lines: Iterable[bytes], wanted: Collection[int] | None = None
) -> Iterator[Interval]:
    for line in lines:
        step = _STEP.match(line)  # told apart without parsing, which takes ten times as long
        if wanted is not None and step is not None and int(step[1]) not in wanted:
            continue
        interval = _interval(rank, line)
        if interval is not None and (wanted is None or interval.step in wanted):
            yield interval


def _interval(rank: int, line: bytes) -> Interval | None:
    try:
        interval = as_record({**json.loads(line.decode("ascii")), "rank": rank}, Interval)
    except (ValueError, TypeError, RecursionError):
        return None
    is_named = (interval.operator + interval.placement).isprintable()
    is_timed = 0 <= interval.start <= interval.stop < math.inf
    return interval if is_named and is_timed and 0 <= interval.step < 10**12 else None
