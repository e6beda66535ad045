"""Read intervals of a run's timeline, while its ranks may still write."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from verl_hpc.config.regular_file import open_regular

DIRECTORY = "timeline"
_NAME = re.compile(r"rank_(\d{5,9})\.jsonl")
_STEP = re.compile(rb'\{"step": (\d{1,12}),')
_MOST_FILES = 1024
_MOST_BYTES = 1_000_000
_BLOCK = 16_384
_OUT_OF_ORDER = 16
"""Most steps by which a line may be older than one before it."""


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
    if wanted is not None and not wanted:
        return []
    first = 0 if wanted is None else min(wanted)
    intervals = [
        interval
        for rank, path in rank_files(run_directory)
        for interval in _intervals(rank, _lines(path, first), wanted)
    ]
    return sorted(intervals, key=lambda interval: (interval.rank, interval.start, interval.stop))


def step_range(run_directory: Path) -> tuple[int, int] | None:
    """Return the oldest and the newest step of any rank; None without a timeline."""
    ends = [
        interval.step
        for rank, path in rank_files(run_directory)
        for lines in (_head(path), _tail(path, _BLOCK)[0])
        for interval in _intervals(rank, lines)
    ]
    return (min(ends), max(ends)) if ends else None


def read_lines(path: Path) -> list[tuple[int, str]]:
    """Return all lines of one rank's file that are intervals, each with its step and its line
    break."""
    text = ((line, _interval(0, line)) for line in _lines(path, 0))
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
        row = json.loads(line.decode("ascii"))
        start, stop = float(row["start"]), float(row["stop"])
        step, names = row["step"], (row["operator"], row["placement"])
        if not (_is_step(step) and all(map(_is_name, names)) and 0 <= start <= stop < math.inf):
            return None
        return Interval(rank, step, *names, start, stop)
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None


def _is_step(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 10**12


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and value.isprintable()


def _lines(path: Path, first_step: int) -> list[bytes]:
    """Return the lines from a step on, and often some before them; steps are nearly in order."""
    size = _BLOCK
    while True:
        lines, is_all = _tail(path, size)
        oldest = next(_intervals(0, lines), None)
        if is_all or size >= _MOST_BYTES:
            return lines
        if oldest is not None and oldest.step < first_step - _OUT_OF_ORDER:
            return lines
        size = min(4 * size, _MOST_BYTES)


def _tail(path: Path, size: int) -> tuple[list[bytes], bool]:
    """Return the whole lines among a file's last bytes, and whether these are all of it."""
    try:
        with open_regular(path) as file:
            end = file.seek(0, 2)
            file.seek(max(end - size, 0))
            data = file.read(size)
    except OSError:
        return [], True
    if end <= size:
        return data.splitlines(), True
    return data.splitlines()[1:], False


def _head(path: Path) -> list[bytes]:
    """Return the first line."""
    try:
        with open_regular(path) as file:
            return [file.readline(_BLOCK)]
    except OSError:
        return []
