"""When a chain of jobs will be done, and how many steps fit into hours and before a date.

Waits in the queue are drawn from those that jobs of a like size had lately. What is forecast is a
sum of waits, whose middle is near the sum of the means, however long the longest of them are.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from verl_hpc.slurm.accounting import Life

FEWEST_WAITS = 10
"""From fewer waits nothing is forecast."""
_DRAWS = 400
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
    """Seconds in the queue: one of ten chains waits less, half of them, nine of ten."""

    def ends(self, now: float) -> tuple[float, float, float]:
        """When it is done, seconds since the epoch, in the same three cases."""
        early, middle, late = (now + self.busy_s + wait for wait in self.waits_s)
        return early, middle, late


def waits_like(history: Iterable[Life], nodes: int) -> list[float]:
    """Seconds from when a job could have started to when it did, of jobs on half to twice as many
    nodes; of all jobs where there are too few of those.

    Jobs that a limit of their owner kept waiting tell nothing about the queue.
    """
    known = [
        (life.nodes, max(life.started - life.eligible, 0.0))
        for life in history
        if life.started is not None
        and life.eligible is not None
        and life.elapsed_s > 0
        and not life.reason.startswith(("QOS", "Assoc"))
    ]
    like = [wait for size, wait in known if nodes / 2 <= size <= 2 * nodes]
    return like if len(like) >= FEWEST_WAITS else [wait for _, wait in known]


def chain_of(steps: int, links: Links, waits: Sequence[float]) -> Chain:
    """So many steps as a chain; without enough waits it has none.

    Args:
        steps: from 1 up.
        links: with time for a step.
        waits: of other jobs, in seconds.
    """
    assert links.most_steps >= 1
    number = -(-steps // links.most_steps)
    busy_s = number * links.start_s + steps * links.step_s
    return Chain(steps, number, busy_s, links.devices * busy_s / 3600, _summed(waits, number))


def most_steps(
    wanted: int | None,
    links: Links,
    waits: Sequence[float],
    hours: float | None,
    seconds: float | None,
) -> Chain | None:
    """The longest chain that fits, of at most `wanted` steps; None if not one step does.

    Args:
        wanted: None takes all that fit.
        links: that it consists of.
        waits: of other jobs, in seconds.
        hours: GPU-hours that it may use.
        seconds: from now, within which nine of ten such chains are to be done.
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


def _summed(waits: Sequence[float], number: int) -> tuple[float, float, float]:
    if len(waits) < FEWEST_WAITS:
        return 0.0, 0.0, 0.0
    # Not for secrets; the same question gets the same answer.
    draw = random.Random(0)  # noqa: S311
    if number > _DRAWS:  # by then the mean alone decides
        total = number * sum(waits) / len(waits)
        return total, total, total
    sums = sorted(sum(draw.choices(waits, k=number)) for _ in range(_DRAWS))
    return sums[_DRAWS // 10], sums[_DRAWS // 2], sums[9 * _DRAWS // 10]
