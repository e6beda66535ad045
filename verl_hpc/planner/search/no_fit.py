"""Explain why nothing fits, and what to change."""

from __future__ import annotations

from math import ceil

from verl_hpc.planner.memory.rollout import needed, rollout_shape, why_not
from verl_hpc.planner.search.cuts import rollout_sizes
from verl_hpc.planner.search.set_ledger import SearchedRun

_LARGEST_SHARE = 0.95
"""Largest share of a device that an engine may ask for; CUDA and NCCL need the rest."""


def why_nothing_fits(run: SearchedRun) -> str:
    """Suggest changes to a run for which a search found no fit.

    Where no engine starts even on the most ranks of a node, nothing else matters. Else engines
    start, and a smaller share of the device leaves more to training.
    """
    config, hardware = run.config, run.hardware
    ranks = f"nothing fits on {run.num_ranks} ranks of {hardware.kind.name} by the memory ledger"
    first = run.archs[run.first]
    pp = config.rollout.pipeline_parallel
    if config.samples_to_train:
        sizes = rollout_sizes(first, run.num_ranks, hardware.ranks_per_node, config.rollout)
        if not sizes:
            return (
                f"{ranks}: rollout.pipeline_parallel = {pp} does not divide the ranks of any set; "
                "choose a divisor of them"
            )
        shape = rollout_shape(config, first, hardware.kind.is_gpu, sizes[-1])
        refused = [why_not(shape, stage, hardware.device_bytes) for stage in range(pp)]
        if why := next(filter(None, refused), None):
            least = max(needed(shape, stage) for stage in range(pp)) / (hardware.device_bytes or 1)
            return (
                f"{ranks}: no engine can start. In one of TP{sizes[-1]} x PP{pp}, the largest that "
                f"a search tries, {why}; {_larger(least, pp)}"
            )
    share = ", or a smaller rollout.gpu_memory_utilization, with which an engine still starts"
    return (
        f"{ranks}: start more, or set offload, smaller micro-batches "
        f"(batch.max_tokens_per_micro_batch){share * config.samples_to_train}. Without --search, "
        "plan names the phase that does not fit, and the cheapest change of the layout given"
    )


def _larger(least: float, pp: int) -> str:
    """Suggest settings with which an engine that needs this share of its device can start."""
    stages = f"rollout.pipeline_parallel above {pp}, so that its parts are smaller"
    if least > _LARGEST_SHARE:
        return f"set {stages}"
    return f"set rollout.gpu_memory_utilization to {ceil(100 * least) / 100:g} or more, or {stages}"
