"""Metrics of a step that belong to no operator, and summaries of lists."""

from __future__ import annotations

import resource
from collections.abc import Iterable, Sequence
from functools import cache

import torch

from verl_hpc.hardware.node import KINDS
from verl_hpc.layout.architecture import Architecture
from verl_hpc.metrics.names import GPU_MEMORY_USED
from verl_hpc.planner.timing.work import forward_flops

_GIB = 2**30


def spread(name: str, values: Iterable[float]) -> dict[str, float]:
    """Return mean, largest and smallest value, by metric name."""
    numbers = list(values)
    return {
        f"{name}/mean": sum(numbers) / len(numbers),
        f"{name}/max": float(max(numbers)),
        f"{name}/min": float(min(numbers)),
    }


def pair_metrics(right: float, margin: float, count: float, num_prompts: int) -> dict[str, float]:
    """Return the metrics of held-out pairs.

    Args:
        right: number of pairs whose chosen answer is preferred.
        margin: mean of what it is preferred by.
        count: number of compared pairs; the others were dropped, and count as wrong.
        num_prompts: number of all pairs.
    """
    accuracy = right / num_prompts
    return {
        "val/score/mean": accuracy,
        "val/accuracy": accuracy,
        "val/margin": margin,
        "val/num_prompts": float(num_prompts),
        "val/num_dropped": float(num_prompts - count),
    }


def utilisation(
    arch: Architecture, lengths: Sequence[int], seconds: float, peak: float
) -> dict[str, float]:
    """Return `perf/mfu/actor`: FLOPs of forward and backward passes, by formula, over what all GPUs
    could have computed in that time. A backward pass counts as two forward ones; recomputation is
    not counted.

    Args:
        arch: the model's sizes.
        lengths: tokens of each sequence, repeated for each pass over it.
        seconds: duration of the passes.
        peak: FLOP/s of all GPUs together; 0 is unknown, and gives no metric.
    """
    if not peak or not seconds:
        return {}
    squares = float(sum(length**2 for length in lengths))
    operations = 3.0 * forward_flops(arch, float(sum(lengths)), squares)
    return {"perf/mfu/actor": operations / seconds / peak}


@cache
def peak_of_device(dtype: str) -> float:
    """Return this rank's GPU's FLOP/s by its data sheet; 0 without a GPU, or for one not listed.

    Args:
        dtype: element type of the matrix products.
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
    """Return this rank's peak memory so far, and its GPU's memory in use now, in GiB."""
    kibibytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    metrics = {"perf/cpu_memory_used_gb": kibibytes * 1024 / _GIB}
    if torch.cuda.is_available():
        metrics["perf/max_memory_allocated_gb"] = torch.cuda.max_memory_allocated() / _GIB
        metrics["perf/max_memory_reserved_gb"] = torch.cuda.max_memory_reserved() / _GIB
        free, total = torch.cuda.mem_get_info()
        metrics[GPU_MEMORY_USED] = (total - free) / _GIB
    return metrics
