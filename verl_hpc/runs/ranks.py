"""ranks.json: where every rank of a run is, for readers on a login node.

Rank 0's watchdog replaces it every few seconds. It holds the process of each rank, which `hang` and
`attach` need, and its operator.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from verl_hpc.config.regular_file import replace_text
from verl_hpc.config.spans import parse_spans, spans
from verl_hpc.runs.records import read_record

FILE = "ranks.json"


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
    """Number of waits for other ranks in the control plane; all ranks wait in the same order."""
    waited_s: float = 0.0
    """Seconds of the current wait; 0 if there is none."""
    waits_for: str = ""
    """Ranks that take part in that wait, in short; empty if all do."""
    usual_s: float = 0.0
    """Longest time that it has spent in this operator before."""
    places: str = ""
    """Its placements: ranks that have the same enter the same operators."""
    silent_s: float = 0.0
    """Seconds since the rank has published this, by a Python thread of its own."""

    @property
    def position(self) -> tuple[int, int]:
        """Position that grows as the rank advances; ranks of the same placements pass the same
        ones."""
        return self.count, self.num_waits


@dataclass(frozen=True)
class Ranks:
    """All ranks of a run at one moment."""

    time: float
    """Seconds since the epoch, by the clock of rank 0's node."""
    interval_s: float
    """Seconds between two writes."""
    late_after_s: float
    job_id: str | None
    """Slurm's job id; None for a run that mpiexec started."""
    ranks: tuple[Progress, ...]

    @property
    def late(self) -> list[Progress]:
        return late_ranks(self.ranks, self.late_after_s)

    def age_s(self, progress: Progress, now: float) -> float:
        """Return the seconds since a rank itself published its position; it may have advanced
        since.

        Args:
            progress: the rank's position.
            now: seconds since the epoch.
        """
        return max(now - self.time, 0.0) + progress.silent_s

    @property
    def patience_s(self) -> float:
        """Seconds after which a rank that has written nothing is silent."""
        return 3 * self.interval_s


def late_ranks(progress: Sequence[Progress], late_after_s: float) -> list[Progress]:
    """Return the ranks that hold up the others, the furthest behind first.

    A rank is late when it has been in its operator for longer than `late_after_s`, and others of
    the same placements have entered a later one; or when it has also been there for more than twice
    as long as ever before, and others have waited for longer than `late_after_s` at a point that it
    has not reached. If all are equally far, none is late.
    """
    # The rank furthest ahead among those with the same placements, by placements.
    ahead: dict[str, Progress] = {}
    for p in sorted(progress, key=lambda p: (p.count, p.seconds)):
        ahead[p.places] = p
    waits = {(p.num_waits, p.waits_for) for p in progress if p.waited_s > late_after_s}
    late = [
        p
        for p in progress
        if p.seconds > late_after_s
        and (
            _is_behind(p, ahead[p.places])
            or (p.seconds > 2 * p.usual_s and any(_is_awaited(p, *wait) for wait in waits))
        )
    ]
    return sorted(late, key=lambda p: (p.position, p.rank))


def _is_behind(rank: Progress, other: Progress) -> bool:
    """Whether the other had entered a later operator when the rank published its position."""
    return rank.count < other.count and other.seconds >= rank.silent_s


def _is_awaited(rank: Progress, num_waits: int, waits_for: str) -> bool:
    """Whether others wait for a rank that does not itself wait for some ranks."""
    if not waits_for:
        return rank.num_waits < num_waits and not (rank.waited_s and rank.waits_for)
    return not rank.waited_s and rank.rank in parse_spans(waits_for)


def write_ranks(run_directory: Path, ranks: Ranks) -> None:
    """Replace the file whole.

    Raises:
        OSError: the directory cannot be written.
    """
    rows = [
        [round(each, 1) if isinstance(each, float) else each for each in vars(p).values()]
        for p in ranks.ranks
    ]
    tree = vars(ranks) | {"ranks": rows}
    replace_text(run_directory / FILE, json.dumps(tree, separators=(",", ":")) + "\n")


def read_ranks(run_directory: Path) -> Ranks | None:
    """Return the last positions of all ranks; None if the file is missing or unreadable."""
    return read_record(run_directory / FILE, Ranks)


def last_wrote(operators: Collection[str], age: str) -> str:
    """Say where ranks last were by their own word; they may have advanced since.

    Args:
        operators: operators that the ranks were in.
        age: age of the oldest word, such as "40 s".

    Returns: "last wrote, 40 s ago, that it was in reward", to follow the name of the ranks.
    """
    subject = "it was" if len(operators) == 1 else "they were"
    return f"last wrote, {age} ago, that {subject} in {', '.join(sorted(set(operators)))}"


@dataclass(frozen=True)
class Placed:
    """A placement: ranks with the roles that they compute."""

    name: str
    first_rank: int
    last_rank: int
    roles: tuple[str, ...]

    @property
    def ranks(self) -> str:
        """The ranks in words."""
        return neighbours(self.first_rank, self.last_rank)

    def operators(self, ranks: Ranks | None) -> dict[str, list[int]]:
        """Return ranks by their operator when ranks.json was written, most ranks first.

        Ranks that had written nothing for long are "silent".
        """
        by_operator: dict[str, list[int]] = {}
        for progress in self._of(ranks):
            is_silent = ranks is not None and progress.silent_s > ranks.patience_s
            name = "silent" if is_silent else progress.operator
            by_operator.setdefault(name, []).append(progress.rank)
        return dict(sorted(by_operator.items(), key=lambda item: -len(item[1])))

    def _of(self, ranks: Ranks | None) -> list[Progress]:
        rows = () if ranks is None else ranks.ranks
        return [p for p in rows if self.first_rank <= p.rank <= self.last_rank]


def neighbours(first: int, last: int) -> str:
    """Return 'rank 3' or 'ranks 0-3'."""
    return f"rank {first}" if first == last else f"ranks {first}-{last}"


def described(placed: Placed, ranks: Ranks | None) -> str:
    """Describe a placement: 'ranks 0-3 (actor, critic): update_actor', or ranks by operator."""
    words = f"{placed.ranks} ({', '.join(placed.roles)})"
    operators = placed.operators(ranks)
    if len(operators) == 1:
        return f"{words}: {next(iter(operators))}"
    parts = (f"{name} on {spans(numbers)}" for name, numbers in operators.items())
    return f"{words}: {'; '.join(parts)}" if operators else words
