"""Choose the number of nodes: the fastest step, or the fewest GPU-hours for one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from verl_hpc.config.run import RunConfig
from verl_hpc.errors import ConfigError
from verl_hpc.layout.architecture import Architecture
from verl_hpc.planner.memory.ledger import Ledger, ledger_on
from verl_hpc.planner.search.emit import applied, overrides_of
from verl_hpc.planner.search.search import Candidate, Found, search
from verl_hpc.planner.timing.machine import Machine
from verl_hpc.planner.timing.workload import Workload

Objective = Literal["seconds", "gpu_hours"]
"""Attribute of a step, or of a candidate, that is to be least."""


def node_counts(most: int) -> list[int]:
    """Numbers of nodes that are worth comparing: powers of two, halfway between them, and `most`.

    Up to 20: 1, 2, 3, 4, 6, 8, 12, 16, 20.
    """
    counts, power = {most}, 1
    while power <= most:
        counts |= {power, power * 3 // 2} if power > 1 else {1}
        power *= 2
    return sorted(count for count in counts if count <= most)


@dataclass(frozen=True)
class Verified:
    """The result of a search, laid out as a run executes it."""

    found: Found
    ledger: Ledger
    """Memory of the best candidate, with its configuration and layouts."""
    overrides: Mapping[str, object]
    """Settings that the result changes, by dotted name."""

    @property
    def candidate(self) -> Candidate:
        return self.found.best


def search_sizes(
    config: RunConfig,
    archs: Mapping[str, Architecture],
    machine: Machine,
    sizes: Sequence[int],
    objective: Objective = "seconds",
    *,
    work: Workload | None = None,
) -> Verified:
    """Search each number of ranks; return the best of what fits, of equals the smaller.

    Args:
        config: of the run.
        archs: of every role.
        machine: what it runs on.
        sizes: numbers of ranks, at least one.
        objective: seconds, or gpu_hours, of a step.
        work: None takes `workload_of(config)`.

    Raises:
        ConfigError: it fits on none of them.
    """
    fitting: list[Verified] = []
    refused: list[ConfigError] = []
    for num_ranks in sorted(sizes):
        try:
            result = search(config, archs, machine, num_ranks, work=work)
        except ConfigError as error:
            refused.append(error)
            continue
        overrides = overrides_of(config, result.best)
        # Laid out as a run executes it, with the peers that are counted for the run itself.
        of_run = ledger_on(applied(config, overrides), archs, num_ranks, machine.hardware, True)
        assert of_run.fits, of_run.first_misfit
        fitting.append(Verified(result, of_run, overrides))
    if not fitting:
        raise refused[-1]
    return min(fitting, key=lambda one: float(getattr(one.candidate, objective)))
