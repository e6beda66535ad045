"""The result of a search, laid out as a run executes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from verl_hpc.config.run import RunConfig
from verl_hpc.layout.architecture import Architecture
from verl_hpc.placement.layouts import RunLayouts
from verl_hpc.planner.memory.ledger import Ledger, ledger
from verl_hpc.planner.search.emit import laid_out, overrides_of
from verl_hpc.planner.search.search import SPARE_BYTES, Candidate, Found, search
from verl_hpc.planner.timing.machine import Machine
from verl_hpc.planner.timing.workload import Workload


@dataclass(frozen=True)
class Verified:
    """A search result with its configuration, layouts and ledger."""

    found: Found
    config: RunConfig
    layouts: RunLayouts
    ledger: Ledger
    overrides: Mapping[str, object]
    """Settings that the result changes, by dotted name."""

    @property
    def candidate(self) -> Candidate:
        return self.found.best


def search_that_fits(
    config: RunConfig,
    archs: Mapping[str, Architecture],
    machine: Machine,
    num_ranks: int,
    *,
    work: Workload | None = None,
    spare_bytes: int = SPARE_BYTES,
) -> Verified:
    """The fastest placement and layouts, with their configuration and its memory ledger.

    Args:
        config: of the run.
        archs: of every role.
        machine: what it runs on.
        num_ranks: of the job.
        work: None takes `workload_of(config)`.
        spare_bytes: left free on every device.

    Raises:
        ConfigError: nothing fits.
    """
    result = search(config, archs, machine, num_ranks, work=work, spare_bytes=spare_bytes)
    chosen, layouts = laid_out(config, result.best, archs, machine.hardware.ranks_per_node)
    of_run = ledger(chosen, archs, layouts, machine.hardware, counts_buckets=True)
    assert of_run.fits, of_run.first_misfit
    changes = overrides_of(config, result.best)
    return Verified(result, chosen, layouts, of_run, changes)
