"""Choose the number of nodes: the fastest step, or the fewest GPU-hours for one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from verl_hpc.config.run import RunConfig
from verl_hpc.errors import ConfigError
from verl_hpc.layout.architecture import Architecture
from verl_hpc.planner.search.search import Candidate
from verl_hpc.planner.search.verified import Verified, search_that_fits
from verl_hpc.planner.timing.machine import Machine
from verl_hpc.planner.timing.workload import Workload

Objective = Literal["step_seconds", "gpu_hours"]

_COST: Mapping[Objective, Callable[[Candidate], float]] = {
    "step_seconds": lambda candidate: candidate.seconds,
    "gpu_hours": lambda candidate: candidate.gpu_hours,
}


def node_counts(most: int) -> list[int]:
    """Numbers of nodes that are worth comparing: powers of two, halfway between them, and `most`.

    Up to 20: 1, 2, 3, 4, 6, 8, 12, 16, 20.
    """
    counts, power = {most}, 1
    while power <= most:
        counts |= {power, power * 3 // 2} if power > 1 else {1}
        power *= 2
    return sorted(count for count in counts if count <= most)


def search_sizes(
    config: RunConfig,
    archs: Mapping[str, Architecture],
    machine: Machine,
    sizes: Sequence[int],
    objective: Objective = "step_seconds",
    *,
    work: Workload | None = None,
) -> list[Verified]:
    """Search each number of ranks; return what fits, the best first, and of equals the smaller.

    Args:
        config: of the run.
        archs: of every role.
        machine: what it runs on.
        sizes: numbers of ranks.
        objective: step_seconds, or gpu_hours of a step.
        work: None takes `workload_of(config)`.

    Raises:
        ConfigError: it fits on none of them.
    """
    fitting, last = [], None
    for num_ranks in sorted(sizes):
        try:
            fitting.append(search_that_fits(config, archs, machine, num_ranks, work=work))
        except ConfigError as error:
            last = error
    if not fitting:
        raise last or ConfigError("no numbers of ranks to search")
    return sorted(fitting, key=lambda one: _COST[objective](one.candidate))
