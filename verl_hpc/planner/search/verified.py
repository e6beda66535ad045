"""A search whose result the memory ledger has agreed to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from verl_hpc.config.run import RunConfig
from verl_hpc.errors import ConfigError
from verl_hpc.layout.architecture import Architecture
from verl_hpc.planner.layouts import RunLayouts
from verl_hpc.planner.memory.ledger import Ledger, ledger
from verl_hpc.planner.search.emit import laid_out, overrides_of
from verl_hpc.planner.search.memory import SPARE_BYTES, FormulaMemory
from verl_hpc.planner.search.search import Candidate, Found, search
from verl_hpc.planner.timing.machine import Machine
from verl_hpc.planner.timing.workload import Workload, workload_of

_ROUNDS = 12
_LOOKED_AT = 3
"""Of the fastest placements, in each round."""
_STEP_BYTES = 2**29


@dataclass(frozen=True)
class Verified:
    """What was found, as a run executes it."""

    found: Found
    candidate: Candidate
    config: RunConfig
    layouts: RunLayouts
    ledger: Ledger
    spare_bytes: int
    """That the formulas were told to leave free, so that the ledger agrees."""
    overrides: Mapping[str, object]
    """Settings that it changes, by dotted name."""


def search_that_fits(
    config: RunConfig,
    archs: Mapping[str, Architecture],
    machine: Machine,
    num_ranks: int,
    *,
    work: Workload | None = None,
    spare_bytes: int = SPARE_BYTES,
) -> Verified:
    """The fastest placement and layouts that fit by the ledger, with something to spare.

    The search itself goes by formulas. Where the ledger finds that the fastest does not fit, it
    searches once more, with as many bytes left free as were missing, until nothing faster is left
    than what fits.

    Args:
        config: of the run.
        archs: of every role.
        machine: what it runs on.
        num_ranks: of the job.
        work: None takes `workload_of(config)`.
        spare_bytes: that is left free on every device, since activations are known to some 15 %.

    Raises:
        ConfigError: nothing fits.
    """
    work, hardware = work or workload_of(config), machine.hardware
    spare, best = spare_bytes, None
    for number in range(_ROUNDS):
        memory = FormulaMemory(config, archs, hardware, work, spare)
        try:
            found = search(config, archs, machine, num_ranks, work=work, memory=memory)
        except ConfigError:
            break
        missing: list[int] = []
        for candidate in found.ranking[:_LOOKED_AT]:
            if best is not None and candidate.seconds >= best.candidate.seconds:
                if not missing:  # else something faster is short of memory, and looked for again
                    return best
                break
            chosen, layouts = laid_out(config, candidate, archs, hardware.ranks_per_node)
            told = ledger(chosen, archs, layouts, hardware)
            room = told.least_room_bytes
            missing.append(0 if room is None else spare_bytes - room)
            if told.fits and missing[-1] <= 0:
                changes = overrides_of(config, candidate)
                best = Verified(found, candidate, chosen, layouts, told, spare, changes)
                break
        if best is not None and candidate is found.best:
            return best
        spare += max(missing[0], 0) + _STEP_BYTES * (1 + number // 3)
    if best is not None:
        return best
    raise ConfigError(
        f"nothing fits on {num_ranks} ranks of {hardware.kind.name} by the memory ledger: start "
        "more, or set offload, smaller micro-batches (batch.max_tokens_per_micro_batch) or a "
        "smaller rollout.gpu_memory_utilization"
    )
