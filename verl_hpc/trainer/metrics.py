"""Numbers of a step that belong to no operator, and how a list becomes a few."""

from __future__ import annotations

import resource
from collections.abc import Iterable

import torch

from verl_hpc.metrics.names import GPU_MEMORY_USED

_GIB = 2**30


def spread(name: str, values: Iterable[float]) -> dict[str, float]:
    """Mean, largest and smallest."""
    found = list(values)
    return {
        f"{name}/mean": sum(found) / len(found),
        f"{name}/max": float(max(found)),
        f"{name}/min": float(min(found)),
    }


def memory_metrics() -> dict[str, float]:
    """Largest memory of this rank so far, and what is taken of its GPU now, in GiB."""
    kibibytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    metrics = {"perf/cpu_memory_used_gb": kibibytes * 1024 / _GIB}
    if torch.cuda.is_available():
        metrics["perf/max_memory_allocated_gb"] = torch.cuda.max_memory_allocated() / _GIB
        metrics["perf/max_memory_reserved_gb"] = torch.cuda.max_memory_reserved() / _GIB
        free, total = torch.cuda.mem_get_info()
        metrics[GPU_MEMORY_USED] = (total - free) / _GIB
    return metrics
