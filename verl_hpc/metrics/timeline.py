"""timeline/rank_00003.jsonl: when a rank ran which operator, written and read."""

from __future__ import annotations

import contextlib
import json
import logging
import math
import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from verl_hpc.config.regular_file import make_directory, replace_file
from verl_hpc.runs.logs.read import last_lines
from verl_hpc.runs.records import as_record

DIRECTORY = "timeline"
_NAME = re.compile(r"rank_(\d{5,9})\.jsonl")
_STEP = re.compile(rb'\{"step": (\d{1,12}),')
_MOST_FILES = 1024
_MOST_BYTES = 1_000_000
"""Bytes that are read at the end of a file; a rank's own has fewer (`MAX_BYTES`)."""


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


MAX_BYTES = 256_000
"""Most bytes of one rank's file: about two hundred steps of ten operators."""
MAX_NAME = 80
"""Most characters of an operator's or a placement's name."""
MAX_RANKS = 64
"""Most ranks of a run that write a timeline."""

_logger = logging.getLogger(__name__)


class Timeline(AbstractContextManager["Timeline"]):
    """Writes the intervals of one rank, a line for each as it ends::

        {"step": 7, "operator": "rollout", "placement": "rollout", "start": 1790000000.1234,
         "stop": 1790000006.5}

    Times are seconds since the epoch by the clock of the rank's node. The file never has more than
    `MAX_BYTES`: the oldest steps are dropped. If it cannot be written (full disk, quota), that is
    logged once, and the run continues without it.
    """

    def __init__(
        self,
        run_directory: Path,
        rank: int,
        resumed_from: int | None,
        clock: Callable[[], float] = time.time,
        *,
        writes: bool = True,
    ) -> None:
        """Open the rank's file, keeping the lines that are still valid.

        Args:
            run_directory: an existing directory.
            rank: rank of this process in the world.
            resumed_from: step of the checkpoint that training resumes from; lines of later steps
                are dropped. None starts over.
            writes: False for a rank that keeps no file, see `writing_ranks`.
        """
        self._path = file_of(run_directory, rank)
        self._clock = clock
        self._open: tuple[int, str, str, float] | None = None
        self._lines: list[tuple[int, str]] = []
        self._size = 0
        self._file: TextIO | None = None
        if not writes:
            return
        last = -1 if resumed_from is None else resumed_from
        lines = [(step, line) for step, line in read_lines(self._path) if step <= last]
        try:
            self._rewrite(newest(lines, MAX_BYTES))
        except OSError as error:
            self._give_up(error)

    def begin(self, step: int, operator: str, placement: str) -> None:
        """End the open interval now, and begin this one."""
        now = self.end()
        self._open = (step, operator[:MAX_NAME], placement[:MAX_NAME], now)

    def end(self) -> float:
        """End the open interval now, and begin none; return the time."""
        now = self._clock()
        if self._open is not None and self._file is not None:
            step, operator, placement, start = self._open
            row = {"step": step, "operator": operator, "placement": placement}
            row |= {"start": round(start, 4), "stop": round(max(now, start), 4)}
            try:
                self._write(step, json.dumps(row) + "\n")
            except OSError as error:
                self._give_up(error)
        self._open = None
        return now

    def close(self) -> None:
        """End the open interval, and close the file."""
        self.end()
        self._close_file()

    def __exit__(self, *error: object) -> None:
        self.close()

    def _write(self, step: int, line: str) -> None:
        assert self._file is not None
        self._lines.append((step, line))
        self._size += len(line)
        if self._size > MAX_BYTES:
            self._rewrite(newest(self._lines, MAX_BYTES // 2))
        else:
            self._file.write(line)
            self._file.flush()

    def _rewrite(self, lines: list[tuple[int, str]]) -> None:
        self._close_file()
        self._lines, self._size = lines, sum(len(line) for _, line in lines)
        make_directory(self._path.parent)
        self._file = replace_file(self._path, (line for _, line in lines))

    def _close_file(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            with contextlib.suppress(OSError):  # a full disk, which was said before
                file.close()

    def _give_up(self, error: OSError) -> None:
        _logger.warning("the timeline of this rank ends here: %s", error)
        self._lines = []
        self._close_file()


def newest(lines: Sequence[tuple[int, str]], most: int) -> list[tuple[int, str]]:
    """Return the last (step, line) pairs of at most `most` characters together, beginning with a
    whole step unless a single one is longer."""
    size, first = 0, len(lines)
    while first > 0 and size + len(lines[first - 1][1]) <= most:
        first -= 1
        size += len(lines[first][1])
    kept = list(lines[first:])
    if first == 0 or not kept:
        return kept
    broken = lines[first - 1][0]
    return [pair for pair in kept if pair[0] != broken] or kept


def writing_ranks(num_ranks: int, placements: Mapping[str, Sequence[int]]) -> frozenset[int]:
    """Return the ranks that write a timeline, at most `MAX_RANKS`: rank 0, the first of each
    placement (up to `MAX_RANKS` - 1), and others at equal distances."""
    chosen = {0, *(ranks[0] for ranks in placements.values() if ranks)}
    if len(chosen) > MAX_RANKS:
        chosen = set(sorted(chosen)[:MAX_RANKS])
    room = MAX_RANKS - len(chosen)
    others = [rank for rank in range(num_ranks) if rank not in chosen]
    if len(others) > room:
        others = [others[i * len(others) // room] for i in range(room)]
    return frozenset(chosen.union(others))


def open_timeline(
    run_directory: Path,
    rank: int,
    num_ranks: int,
    placements: Mapping[str, Sequence[int]],
    resumed_from: int | None,
) -> Timeline:
    """Open a rank's timeline, which writes if the rank is one of `writing_ranks`.

    Rank 0 also removes files of ranks that wrote in an earlier start and do not now.
    """
    writers = writing_ranks(num_ranks, placements)
    if rank == 0:
        forget_others(run_directory, writers, resumed_from)
    return Timeline(run_directory, rank, resumed_from, writes=rank in writers)


def forget_others(run_directory: Path, writers: Collection[int], resumed_from: int | None) -> None:
    """Keep only the steps up to the resumed one in files of ranks that do not write now."""
    for rank, path in rank_files(run_directory):
        if rank in writers:
            continue
        try:
            if resumed_from is None:
                path.unlink()
            else:
                Timeline(run_directory, rank, resumed_from).close()
        except OSError as error:
            _logger.warning("%s cannot be removed: %s", path, error)
