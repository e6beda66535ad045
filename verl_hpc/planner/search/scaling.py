"""Strong and weak scaling on paper: the best layouts of a run on more and more ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from verl_hpc.config.run import RunConfig
from verl_hpc.errors import ConfigError
from verl_hpc.layout.architecture import Architecture
from verl_hpc.planner.search.search import Candidate, search
from verl_hpc.planner.timing.machine import Machine
from verl_hpc.planner.timing.step import step_flops
from verl_hpc.planner.timing.workload import Workload, workload_of

RULE = 0.75
"""Least efficiency that computing centres ask for."""

WHY: Mapping[str, str] = {
    "rollout": "its longest response takes as many steps on more ranks, and each reads all weights",
    "reshard": "every node receives the weights that it lacks, however many nodes there are",
    "update": "replicas have fewer micro-batches to fill pipelines and to hide reductions with",
    "host": "work on the host is the same on more ranks",
    "infer": "replicas have fewer micro-batches to fill pipelines with",
}


@dataclass(frozen=True)
class Row:
    """A run on so many ranks."""

    model: str
    num_ranks: int
    sequences: int
    """Sequences of a step."""
    candidate: Candidate | None
    """The best placement; None where nothing fits."""
    tokens_per_second: float
    efficiency: float
    """Tokens per second and rank, relative to the fewest ranks on which it fits."""
    utilisation: float
    """Share of the peak of products."""
    limited_by: str
    """The operator that loses most against perfect scaling; empty where nothing is lost."""

    @property
    def seconds(self) -> float | None:
        """Seconds of a step."""
        return None if self.candidate is None else self.candidate.seconds

    @property
    def why(self) -> str:
        """Reason why that operator does not scale."""
        name = self.limited_by
        kind = "update" if name.startswith("update") else name
        if name.endswith(("log_probs", "values", "forward")) or name == "reward":
            kind = "infer"
        return WHY.get(kind, WHY["host"]) if name else ""


def scaling_rows(
    model: str,
    config: RunConfig,
    archs: Mapping[str, Architecture],
    machine: Machine,
    sizes: Sequence[int],
    *,
    weak: bool = False,
    work: Workload | None = None,
) -> list[Row]:
    """A row for each number of ranks.

    Args:
        model: its name, for tables.
        config: of the run.
        archs: of every role.
        machine: what it runs on.
        sizes: numbers of ranks, ascending.
        weak: sequences of a step grow with the ranks, from those that `work` has on the first
            size; else every size has the same.
        work: None takes `workload_of(config)`.
    """
    work = work or workload_of(config)
    rows: list[Row] = []
    first: tuple[Candidate, float, float] | None = None
    for num_ranks in sizes:
        mine = work.scaled(num_ranks / sizes[0]) if weak else work
        try:
            best = search(config, archs, machine, num_ranks, work=mine).best
        except ConfigError:
            rows.append(Row(model, num_ranks, mine.sequences, None, 0.0, 0.0, 0.0, ""))
            continue
        speed = mine.tokens / best.seconds
        # Efficiency and the limiting operator are relative to the first size that fits.
        if first is None:
            first = best, speed / num_ranks, mine.tokens / num_ranks
        used = step_flops(config, archs, mine) / (
            best.seconds * num_ranks * machine.peak(config.model.dtype)
        )
        share = (mine.tokens / num_ranks) / first[2]
        efficiency = speed / num_ranks / first[1]
        limit = _limit(first[0], best, share) if efficiency < 1 else ""
        rows.append(Row(model, num_ranks, mine.sequences, best, speed, efficiency, used, limit))
    return rows


def breaks_at(rows: Sequence[Row]) -> Row | None:
    """The first row below the rule; None if all keep it."""
    return next((r for r in rows if r.candidate is not None and r.efficiency < RULE), None)


def _limit(first: Candidate, now: Candidate, share: float) -> str:
    """The operator whose rank-seconds grew most beyond its share of work.

    Args:
        share: tokens a rank, of those of the first.
    """
    lost = {
        name: seconds - share * first.operators.get(name, 0.0)
        for name, seconds in now.operators.items()
    }
    return max(lost, key=lost.__getitem__)
