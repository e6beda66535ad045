"""Numbers of a step that belong to no operator, and how a list becomes a few."""

from __future__ import annotations

import resource
from collections.abc import Iterable, Sequence

import torch

from verl_hpc.hardware.node import KINDS
from verl_hpc.layout.architecture import Architecture
from verl_hpc.metrics.names import GPU_MEMORY_USED
from verl_hpc.planner.timing.work import forward_flops

_GIB = 2**30


def spread(name: str, values: Iterable[float]) -> dict[str, float]:
    """Mean, largest and smallest."""
    found = list(values)
    return {
        f"{name}/mean": sum(found) / len(found),
        f"{name}/max": float(max(found)),
        f"{name}/min": float(min(found)),
    }


def utilisation(
    arch: Architecture, lengths: Sequence[int], seconds: float, peak: float
) -> dict[str, float]:
    """`perf/mfu/actor`: operations of a forward and a backward pass over sequences, by formula,
    over those that all GPUs could have done meanwhile. A backward pass is two forward ones; nothing
    that is computed again counts.

    Args:
        arch: of the model.
        lengths: tokens of each sequence, once for each pass over it.
        seconds: that the passes took.
        peak: operations a second of all GPUs together; 0 is not known, and gives nothing.
    """
    if not peak or not seconds:
        return {}
    squares = float(sum(length**2 for length in lengths))
    operations = 3.0 * forward_flops(arch, float(sum(lengths)), squares)
    return {"perf/mfu/actor": operations / seconds / peak}


def peak_of_device(dtype: str) -> float:
    """Operations a second of this rank's GPU by its data sheet; 0 without one, or if it has none
    here.

    Args:
        dtype: of the products.
    """
    if not torch.cuda.is_available():
        return 0.0
    name = torch.cuda.get_device_name()
    kinds = [kind for kind in KINDS.values() if kind.is_gpu and kind.is_called(name)]
    if not kinds:
        return 0.0
    memory = torch.cuda.mem_get_info()[1]  # kinds of one name differ in it
    kind = min(kinds, key=lambda kind: abs(kind.memory_bytes - memory))
    return 1e12 * kind.peak_tflops(dtype)


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
