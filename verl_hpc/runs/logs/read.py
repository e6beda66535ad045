"""Logs of a run's starts: job/attempts/K/NODE.log, in which srun puts a rank before each line, or
NODE.rankR.log for each rank that launch/mpiexec.sh has started. The rank itself puts a time before
its lines."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from verl_hpc.config.regular_file import is_regular, open_regular
from verl_hpc.errors import ClusterError

_PICTURES = {
    **{code: chr(0x2400 + code) for code in range(0x20) if code != ord("\t")},
    **dict.fromkeys(range(0x7F, 0xA0), "\ufffd"),
}
"""Control characters, and what is shown of them."""
TIME_FORMAT = "%Y-%m-%dT%H:%M:%S"
"""Of the time before a line, by the clock and in the zone of its node."""

_BATCH_BYTES = 4096
"""So much of the end of a batch script's log has its last words."""
_OF_RANK = re.compile(r"(.+)\.rank(\d+)")
_LABEL = re.compile(r"^ *(\d+): ")
_TIME = re.compile(r"^(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d) ")


@dataclass(frozen=True)
class Line:
    """One line of a log, without its label and time."""

    node: str
    rank: int | None
    """None for what srun itself says."""
    text: str
    time: str = ""
    """As TIME_FORMAT says; empty for what native code and srun write."""

    def __str__(self) -> str:
        rank = "" if self.rank is None else f" {self.rank}"
        time = f"{self.time} " if self.time else ""
        return f"{self.node}{rank}: {time}{self.text}"


def last_lines(path: Path, most_bytes: int) -> list[bytes]:
    """The whole lines among a file's last bytes; none of a file that cannot be read."""
    try:
        with open_regular(path) as file:
            size = file.seek(0, 2)
            file.seek(max(size - most_bytes, 0))
            lines = file.read().splitlines()
    except OSError:
        return []
    return lines[1:] if size > most_bytes else lines


def attempts_of(run: Path) -> list[int]:
    """Numbers of the starts that have logs, oldest first."""
    directory = run / "job" / "attempts"
    names = [path.name for path in directory.iterdir()] if directory.is_dir() else []
    return sorted(int(name) for name in names if name.isdecimal())


def attempt_directory(run: Path, attempt: int | None = None) -> Path:
    """Logs of one start; of the last one if no number is given.

    Raises:
        ClusterError: there are no logs, or none of this start.
    """
    known = attempts_of(run)
    if not known:
        raise ClusterError(_without_logs(run))
    chosen = known[-1] if attempt is None else attempt
    if chosen not in known:
        raise ClusterError(
            f"--attempt {attempt}: {run} has logs of the attempts {', '.join(map(str, known))}"
        )
    return run / "job" / "attempts" / str(chosen)


def _without_logs(run: Path) -> str:
    """Why a run has no logs of ranks, and where to look instead."""
    for log in sorted((run / "job").glob("slurm-*.log"), reverse=True):
        if lines := last_lines(log, _BATCH_BYTES):
            said = "\n".join(parse_line(log.stem, line).text for line in lines)
            return f"{run}: its batch script has started no ranks; it said ({log}):\n{said}"
    if (run / "job").is_dir():
        return (
            f"{run} has no logs: its batch script has not started yet, or could not; `python -m "
            f"verl_hpc status {run}` asks Slurm which"
        )
    return f"{run} has no logs: mpiexec has started it, whose output goes where it was started from"


def node_logs(attempt: Path) -> list[Path]:
    """The log of each node, or of each rank, in the order of their names: n2 before n10."""
    return sorted(filter(is_regular, attempt.glob("*.log")), key=_natural)


def read_lines(log: Path, rank: int | None = None) -> Iterator[Line]:
    """The lines of one log.

    Args:
        log: the file; its name is the node's, or has the node's and the rank.
        rank: only this rank's lines.
    """
    with open_regular(log) as file:
        for line in file:
            parsed = parse_line(log.stem, line)
            if rank is None or parsed.rank == rank:
                yield parsed


def parse_line(name: str, line: bytes) -> Line:
    """Take srun's label and the time off a line.

    Args:
        name: of the file, without its ending: NODE, or NODE.rankR, whose lines have no label.
        line: with or without its end.

    Bytes that are no UTF-8 are replaced, and so are control characters: a terminal would obey them.
    """
    text = line.decode("utf-8", errors="replace").rstrip("\r\n").translate(_PICTURES)
    node, rank = name, None
    if (owner := _OF_RANK.fullmatch(name)) is not None:
        node, rank = owner.group(1), int(owner.group(2))
    elif (label := _LABEL.match(text)) is not None:
        rank, text = int(label.group(1)), text[label.end() :]
    time = None if rank is None else _TIME.match(text)
    if time is None:
        return Line(node, rank, text)
    return Line(node, rank, text[time.end() :], time.group(1))


def _natural(path: Path) -> list[tuple[bool, int, str]]:
    parts = re.split(r"(\d+)", path.stem)
    return [(p.isdecimal(), int(p) if p.isdecimal() else 0, p) for p in parts if p]
