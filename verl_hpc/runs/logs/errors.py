"""Find the first failure in a start's logs, whole, among the lines of all ranks."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import verl_hpc.errors
from verl_hpc.errors import VerlHpcError
from verl_hpc.runs.logs.read import node_logs, read_lines

_OURS = sorted(
    name
    for name, value in vars(verl_hpc.errors).items()
    if isinstance(value, type) and issubclass(value, VerlHpcError)
)
_TRACEBACK = "Traceback (most recent call last):"
_SLURM = re.compile(r"(srun|slurmstepd(-\S+)?): error: ")
_OUT_OF_MEMORY = re.compile(r"slurmstepd(-\S+)?: error: .*([Oo][Oo][Mm][-_ ][Kk]ill|[Oo]ut [Oo]f)")
# The most telling first. Ranks of a job that ran out of memory do not say so, and a traceback that
# a library merely logs may come before our own report.
_STARTS = (
    _OUT_OF_MEMORY,
    re.compile(r"verl_hpc: rank \d+( of \d+)? on \S+ failed in .*:( |$)"),
    re.compile(rf"({'|'.join(_OURS)}): "),
    re.compile(re.escape(_TRACEBACK)),
    # A container that did not start: bubblewrap, Apptainer.
    re.compile(r"bwrap: |FATAL: "),
    _SLURM,
)
# Lines after a report: other programs about the end of the job, or our next message.
_ENDS = re.compile(r"verl_hpc: |Abort\(|application called MPI_Abort|srun: |slurmstepd(-\S+)?: ")
_MOST_LINES = 400
_AFTER_A_FRAME = 20
"""Most lines before an exception's message, or the next frame of a chain of exceptions."""


@dataclass(frozen=True)
class Failure:
    """Report of one rank that failed."""

    node: str
    rank: int | None
    """Rank that failed; None if srun or Slurm reports it."""
    lines: tuple[str, ...]
    time: str = ""
    """Time of the first line, by its node's clock; empty if it has none."""
    num_others: int = 0
    """Number of other ranks that failed in the same way."""


def first_error(attempt: Path, rank: int | None = None) -> Failure | None:
    """Return the report of the rank that failed first; else an error that all ranks raised, the
    first traceback, or words of a container's runtime or of Slurm.

    Ranks that fail for one cause agree on who prints the report; of several reports, the earliest
    is returned.

    Args:
        attempt: directory of a start's logs.
        rank: look only at this rank.
    """
    if rank is None and (killed := _batch_error(attempt, _OUT_OF_MEMORY)) is not None:
        return killed
    for start in _STARTS:
        failures = [
            failure for log in node_logs(attempt) for failure in _failures(log, start, rank)
        ]
        if failures:
            first = min(failures, key=lambda failure: failure.time or "~")
            return replace(first, num_others=len(failures) - 1)
    return _batch_error(attempt, _SLURM) if rank is None else None


def _failures(log: Path, start: re.Pattern[str], rank: int | None) -> list[Failure]:
    """Return each rank's first failure, without other ranks' lines in between."""
    reports: dict[int | None, list[str]] = {}
    times: dict[int | None, str] = {}
    node = log.stem
    whole: set[int | None] = set()
    for line in read_lines(log, rank):
        node = line.node
        report = reports.get(line.rank)
        if report is None:
            if start.match(line.text):
                reports[line.rank], times[line.rank] = [line.text], line.time
        elif line.rank not in whole:
            ends = start not in (_SLURM, _OUT_OF_MEMORY) and _ENDS.match(line.text)
            if len(report) == _MOST_LINES or ends:
                whole.add(line.rank)
            else:
                report.append(line.text)
    return [Failure(node, who, _cut(lines), times[who]) for who, lines in reports.items()]


def _cut(lines: Sequence[str]) -> tuple[str, ...]:
    """Return the lines without those after a bare traceback, whose end is not marked, and without
    blank ones at the end."""
    end = len(lines)
    if lines[0] == _TRACEBACK:
        last_frame = 0
        for index, text in enumerate(lines):
            if text.startswith("  File ") and index - last_frame <= _AFTER_A_FRAME:
                last_frame = index
        end = min(end, last_frame + _AFTER_A_FRAME)
    while not lines[end - 1].strip():
        end -= 1
    return tuple(lines[:end])


def _batch_error(attempt: Path, start: re.Pattern[str]) -> Failure | None:
    """Return lines of srun and Slurm in the batch script's log that match `start`: a killed rank
    reports nothing itself."""
    for log in sorted(attempt.parent.parent.glob("slurm-*.log")):
        lines = tuple(text for text in _of_attempt(log, attempt.name) if start.match(text))
        if lines:
            return Failure(log.stem, None, lines)
    return None


def _of_attempt(log: Path, attempt: str) -> Iterator[str]:
    """Yield the lines of one start in a batch log, to which every start of the job appends."""
    inside = False
    for line in read_lines(log):
        match = re.match(r"(\S+ )?attempt (\d+): job ", line.text)
        if match is not None:
            inside = match.group(2) == attempt
        elif inside:
            yield line.text
