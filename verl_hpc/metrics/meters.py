"""Measure seconds, CPU seconds and joules by operator: whatever a counter of this rank counts up.

Counters are read where one operator ends and the next begins, so that what they count goes to the
operator under way on that rank. Joules are those of the rank's GPU (NVML):
nvmlDeviceGetTotalEnergyConsumption, millijoules since the driver was loaded, from Volta on. CPUs,
memory, fans, power supplies, the network and idle GPUs are not in them.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from verl_hpc.metrics.names import CPU, ENERGY, TIMING

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Counter:
    """A counter that grows."""

    name: str
    """Prefix of its metrics."""
    read: Callable[[], int]
    """Function that returns units since some moment; it may raise."""
    per: int
    """Units in one second or joule."""
    idle: str = ""
    """Name for what is counted between operators; empty if no metric has that."""
    whole: str = ""
    """Name for what is counted in all; empty if no metric has that."""


CLOCKS = (
    Counter(TIMING, time.perf_counter_ns, 10**9, whole="step"),
    Counter(CPU, time.process_time_ns, 10**9, whole="step"),
)
"""The host's clock, and the CPU time of all threads of this process."""


class Meters:
    """Adds up what clocks and counters count by operator, between two calls of `drain`.

    Args:
        counters: counters that this rank reads besides `CLOCKS`.
    """

    def __init__(self, counters: Sequence[Counter] = ()) -> None:
        self._operator = ""
        self._spent: dict[tuple[str, int], int] = {}
        """Units by metric, and how many of them are one second or joule."""
        self._last = {counter: counter.read() for counter in (*CLOCKS, *counters)}

    def enter(self, operator: str) -> None:
        """Attribute all until now to the previous operator, and from now on to this one; "" is
        none."""
        self._take()
        self._operator = operator

    @contextmanager
    def during(self, operator: str) -> Iterator[None]:
        """Attribute a block to an operator, also one that raises. Blocks do not nest."""
        self.enter(operator)
        try:
            yield
        finally:
            self.enter("")

    def drain(self) -> dict[str, float]:
        """Return all since the last drain as `timing_s/<operator>`, `cpu_s/<operator>` and
        `energy_j/nvml/<operator>`, and the seconds in all as `timing_s/step` and
        `cpu_s/step`."""
        self._take()
        spent, self._spent = self._spent, {}
        return {name: units / per for (name, per), units in spent.items()}

    def _take(self) -> None:
        for counter, last in list(self._last.items()):
            try:
                now = counter.read()
            except Exception as error:  # the driver's; a run does not end for want of a meter
                _logger.warning("%s is not read any more: %s", counter.name.rstrip("/"), error)
                del self._last[counter]
                continue
            used = max(now - last, 0)  # a driver that was loaded anew counts from 0
            self._last[counter] = now
            for name in (self._operator or counter.idle, counter.whole):
                if name:
                    metric = f"{counter.name}{name}", counter.per
                    self._spent[metric] = self._spent.get(metric, 0) + used


def gpu_joules(uuid: str) -> list[Counter]:
    """Return the GPU's counter of joules; none without NVIDIA's driver or on GPUs without one
    (before Volta, MIG).

    Args:
        uuid: id of the GPU, with or without "GPU-" before it.
    """
    try:
        import pynvml
    except ImportError:
        return []
    nvml: Any = pynvml
    try:
        nvml.nvmlInit()
        handle = nvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid.removeprefix('GPU-')}")
        nvml.nvmlDeviceGetTotalEnergyConsumption(handle)
    except nvml.NVMLError:
        return []
    return [joules(lambda: int(nvml.nvmlDeviceGetTotalEnergyConsumption(handle)))]


def joules(millijoules: Callable[[], int]) -> Counter:
    """Return a counter of energy."""
    return Counter(ENERGY, millijoules, 1000, idle="other")
