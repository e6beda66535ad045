"""Read logs of a run's starts: job/attempts/K/NODE.log, in which srun puts a rank before each line,
or NODE.rankR.log for each rank that launch/mpiexec.sh has started. The rank itself puts a time
before its lines."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from verl_hpc.config.regular_file import is_regular, open_regular
from verl_hpc.errors import ClusterError

_PICTURES = {
    **{code: chr(0x2400 + code) for code in range(0x20) if code != ord("\t")},
    **dict.fromkeys(range(0x7F, 0xA0), "\ufffd"),
}
"""Control characters, and their printable replacements."""
TIME_FORMAT = "%Y-%m-%dT%H:%M:%S"
"""Format of the time before a line, by the clock and in the zone of its node."""

_BATCH_BYTES = 4096
"""Bytes at the end of a batch script's log that hold its last lines."""
_OF_RANK = re.compile(r"(.+)\.rank(\d+)")
_LABEL = re.compile(r"^ *(\d+): ")
_TIME = re.compile(r"^(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d) ")


@dataclass(frozen=True)
class Line:
    """One line of a log, without its label and time."""

    node: str
    rank: int | None
    """Rank that wrote the line; None for srun itself."""
    text: str
    time: str = ""
    """Time in TIME_FORMAT; empty for lines of native code and srun."""

    def __str__(self) -> str:
        rank = "" if self.rank is None else f" {self.rank}"
        time = f"{self.time} " if self.time else ""
        return f"{self.node}{rank}: {time}{self.text}"


def last_lines(path: Path, most_bytes: int) -> list[bytes]:
    """Return the whole lines among a file's last bytes; empty if it cannot be read."""
    try:
        with open_regular(path) as file:
            size = file.seek(0, 2)
            file.seek(max(size - most_bytes, 0))
            lines = file.read().splitlines()
    except OSError:
        return []
    return lines[1:] if size > most_bytes else lines


def attempts_of(run: Path) -> list[int]:
    """Return the numbers of the starts that have logs, oldest first."""
    directory = run / "job" / "attempts"
    names = [path.name for path in directory.iterdir()] if directory.is_dir() else []
    return sorted(int(name) for name in names if name.isdecimal())


def attempt_directory(run: Path, attempt: int | None = None) -> Path:
    """Return the log directory of one start; of the last one if no number is given.

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
    """Return why a run has no logs of ranks, and where to look instead."""
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
    """Return the log of each node, or of each rank, in natural order: n2 before n10."""
    return sorted(filter(is_regular, attempt.glob("*.log")), key=_natural)


def read_lines(log: Path, rank: int | None = None) -> Iterator[Line]:
    """Yield the lines of one log.

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
    """Parse a line into srun's label, the time and the text.

    Args:
        name: name of the file without its ending: NODE, or NODE.rankR, whose lines have no label.
        line: the line, with or without its end.

    Bytes that are not UTF-8 are replaced, and so are control characters, which a terminal would
    obey.
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


SHOWN_AT_FIRST = 10
"""Existing lines of each node that are shown at first."""


class Tail:
    """Returns the whole lines that a file has gained between two calls; half a line waits for the
    rest."""

    def __init__(self, path: Path) -> None:
        self.position = 0
        """Bytes that were read."""
        self._path, self._half = path, b""

    def gained(self) -> list[bytes]:
        with open_regular(self._path) as file:
            file.seek(self.position)
            data = file.read()
        self.position += len(data)
        *lines, self._half = (self._half + data).split(b"\n")
        return lines


class Follower:
    """Returns the lines that logs gain between two calls of `news`.

    Args:
        run: run directory.
        attempt: start to follow; None follows the last one, and those that come after it.
        rank: only this rank's lines.
    """

    def __init__(self, run: Path, attempt: int | None = None, rank: int | None = None) -> None:
        self._run = run
        self._rank = rank
        self._stays = attempt is not None
        self.directory = attempt_directory(run, attempt)
        self._tails: dict[Path, Tail] = {}
        self._started = False

    def news(self) -> Iterator[Line]:
        """Yield new whole lines; at the first call the last ones of each node."""
        first, self._started = not self._started, True
        yield from self._read(SHOWN_AT_FIRST if first else None)
        if not self._stays and self._moved_on():
            yield from self._read(None)

    def _moved_on(self) -> bool:
        latest = self._run / "job" / "attempts" / str(attempts_of(self._run)[-1])
        moved = latest != self.directory
        self.directory = latest
        return moved

    def _read(self, most: int | None) -> Iterator[Line]:
        for log in node_logs(self.directory):
            gained = self._tails.setdefault(log, Tail(log)).gained()
            lines = (parse_line(log.stem, line) for line in gained)
            wanted = (line for line in lines if self._rank in (None, line.rank))
            yield from wanted if most is None else deque(wanted, maxlen=most)
