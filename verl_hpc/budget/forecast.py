"""When a chain of jobs will be done, and how many steps fit into hours and before a date.

The chain is replayed in the queue's recent past: from a hundred moments of it, each link waits as
long as the next job of its kind did that could start. So an array of a thousand jobs counts as
often as a link would have met it, and not a thousand times; weeks of a full queue stay together.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from verl_hpc.slurm.accounting import Life

FEWEST_WAITS = 10
"""From fewer waits nothing is forecast."""
REPLAYS = 100
_MOST_LINKS = 200
"""A longer chain waits in proportion."""
_MOST_STEPS = 1_000_000


@dataclass(frozen=True)
class Links:
    """What the jobs of a chain are like."""

    nodes: int
    devices: int
    """GPUs that a job is charged for; cores or ranks where it has none."""
    step_s: float
    start_s: float
    """From a job's start to its first step."""
    usable_s: float
    """From a job's start to the signal that tells it to save."""

    @property
    def most_steps(self) -> int:
        """Steps of a job; the one under way at the signal is finished, and not counted."""
        return int((self.usable_s - self.start_s) / self.step_s)


@dataclass(frozen=True)
class Chain:
    """So many steps as a chain."""

    steps: int
    links: int
    busy_s: float
    """Seconds of all its jobs, without waits."""
    hours: float
    """GPU-hours."""
    waits_s: tuple[float, float, float]
    """Seconds in the queue: of the quickest replay, of the middle one, of the slowest."""

    def ends(self, now: float) -> tuple[float, float, float]:
        """When it is done, seconds since the epoch, as in the same three replays."""
        early, middle, late = (now + self.busy_s + wait for wait in self.waits_s)
        return early, middle, late


class Wait(NamedTuple):
    """How long a job waited in the queue."""

    eligible: float
    """When it could have started, seconds since the epoch."""
    seconds: float
    """From then until it did."""


def waits_like(history: Iterable[Life], nodes: int, on_gpus: bool) -> list[Wait]:
    """Waits of jobs with GPUs (or without any) on half to twice as many nodes, in the order in
    which they could have started; of all jobs where there are too few of those.

    Jobs that a limit of their owner kept waiting tell nothing about the queue.
    """
    known = sorted(
        (Wait(life.eligible, max(life.started - life.eligible, 0.0)), life.nodes, life.gpus > 0)
        for life in history
        if life.started is not None
        and life.eligible is not None
        and life.elapsed_s > 0
        and not life.reason.startswith(("QOS", "Assoc"))
    )
    like = [wait for wait, n, gpus in known if nodes / 2 <= n <= 2 * nodes and gpus == on_gpus]
    return like if len(like) >= FEWEST_WAITS else [wait for wait, *_ in known]


def chain_of(steps: int, links: Links, waits: Sequence[Wait]) -> Chain:
    """So many steps as a chain; without enough waits it has none.

    Args:
        steps: from 1 up.
        links: with time for a step.
        waits: of other jobs, in the order in which they could have started.
    """
    assert links.most_steps >= 1
    number = -(-steps // links.most_steps)
    busy_s = number * links.start_s + steps * links.step_s
    waits_s = _replayed(waits, number, links.usable_s)
    return Chain(steps, number, busy_s, links.devices * busy_s / 3600, waits_s)


def most_steps(
    wanted: int | None,
    links: Links,
    waits: Sequence[Wait],
    hours: float | None,
    seconds: float | None,
) -> Chain | None:
    """The longest chain that fits, of at most `wanted` steps; None if not one step does.

    Args:
        wanted: None takes all that fit.
        links: that it consists of.
        waits: of other jobs, in the order in which they could have started.
        hours: GPU-hours that it may use.
        seconds: from now, within which the slowest replay is to be done.
    """

    def fits(steps: int) -> bool:
        chain = chain_of(steps, links, waits)
        in_time = seconds is None or chain.busy_s + chain.waits_s[2] <= seconds
        return in_time and (hours is None or chain.hours <= hours)

    low, high = 0, wanted or _MOST_STEPS
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return chain_of(low, links, waits) if low else None


def _replayed(waits: Sequence[Wait], links: int, link_s: float) -> tuple[float, float, float]:
    """Seconds that a chain waits: in the quickest replay, in the middle one, in the slowest."""
    if len(waits) < FEWEST_WAITS:
        return 0.0, 0.0, 0.0
    eligible = [wait.eligible for wait in waits]
    first, span = eligible[0], max(eligible[-1] - eligible[0], 1.0)
    played = min(links, _MOST_LINKS)
    sums = []
    for replay in range(REPLAYS):
        then, waited = span * replay / REPLAYS, 0.0
        for _ in range(played):
            # The past is a ring: after its end comes its beginning.
            position = bisect_left(eligible, first + then % span) % len(waits)
            wait = waits[position].seconds
            waited += wait
            then += wait + link_s
        sums.append(waited * links / played)
    sums.sort()
    return sums[0], sums[REPLAYS // 2], sums[-1]
