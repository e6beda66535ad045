"""A partition that never existed, for histories of its queue and a chain of jobs in it.

Jobs come at random (exponential gaps), want 1 to 16 of its nodes and run for a lognormal time that
is a part of their limit. The scheduler is first come, first served with EASY backfill: a job starts
out of turn if it cannot delay the first of those that wait. A chain's next job comes when the one
before has ended, as with --dependency=afterany. Nothing of Slurm is in it.
"""

from __future__ import annotations

import heapq
import random
from dataclasses import dataclass

from verl_hpc.slurm.accounting import Life

HOUR = 3600.0


@dataclass
class Job:
    nodes: int
    seconds: float
    limit_s: float
    came: float
    started: float | None = None
    is_link: bool = False


class Partition:
    """Its nodes, the node-hours that jobs want as a share of those there are, and chance's seed."""

    def __init__(self, nodes: int, load: float, seed: int) -> None:
        self.nodes, self.chance = nodes, random.Random(seed)
        mean_s = 4.4 * 4.0 * HOUR  # nodes times seconds of a mean job
        self.gap_s = mean_s / (load * nodes)
        self.free, self.now = nodes, 0.0
        self.queue: list[Job] = []
        self.running: list[tuple[float, int, Job]] = []
        self.all: list[Job] = []
        self.next_job = 0.0

    def advance(self, until: float) -> None:
        """Let time pass; stops at the end of a link."""
        while True:
            ends = self.running[0][0] if self.running else float("inf")
            then = min(ends, self.next_job, until)
            self.now = then
            if then == until and ends > until:
                return
            if ends <= self.next_job:
                _, _, job = heapq.heappop(self.running)
                self.free += job.nodes
                self._schedule()
                if job.is_link:
                    return
            else:
                self.next_job += self.chance.expovariate(1 / self.gap_s)
                self._come(self._any_job())

    def run_chain(self, links: int, nodes: int, seconds: float) -> float:
        """When the last of so many jobs is done that follow each other."""
        for _ in range(links):
            self._come(Job(nodes, seconds, seconds, self.now, is_link=True))
            self.advance(float("inf"))
        return self.now

    def history(self) -> list[Life]:
        """Records of the jobs that have started, like those of sacct."""
        return [
            Life(str(i), "COMPLETED", j.came, j.came, j.started, j.seconds, j.nodes, 4 * j.nodes,
                 32 * j.nodes, None, "", j.limit_s)
            for i, j in enumerate(self.all)
            if j.started is not None
        ]  # fmt: skip

    def _any_job(self) -> Job:
        nodes = self.chance.choice((1, 1, 2, 2, 4, 4, 8, 8, 8, 16))
        limit = self.chance.choice((4, 8, 12, 24)) * HOUR
        seconds = min(self.chance.lognormvariate(0.9, 0.9) * HOUR, limit)
        return Job(nodes, seconds, limit, self.next_job)

    def _come(self, job: Job) -> None:
        job.came = self.now
        self.all.append(job)
        self.queue.append(job)
        self._schedule()

    def _schedule(self) -> None:
        while self.queue and self.queue[0].nodes <= self.free:
            self._start(self.queue.pop(0))
        if not self.queue:
            return
        first, free, then = self.queue[0], self.free, self.now
        limits = sorted((job.started + job.limit_s, job.nodes) for *_, job in self.running)
        for then, nodes in limits:  # noqa: B007
            free += nodes
            if free >= first.nodes:
                break
        spare = free - first.nodes
        for job in list(self.queue[1:]):
            if job.nodes <= self.free and (self.now + job.limit_s <= then or job.nodes <= spare):
                spare -= job.nodes if self.now + job.limit_s > then else 0
                self.queue.remove(job)
                self._start(job)

    def _start(self, job: Job) -> None:
        job.started = self.now
        self.free -= job.nodes
        heapq.heappush(self.running, (self.now + job.seconds, id(job), job))
