"""Measure seconds, CPU seconds and joules by operator: whatever a counter of this rank counts up.

Counters are read where one operator ends and the next begins, so that what they count goes to the
operator under way on that rank. Joules come from GPUs (NVML) and from CPUs and memory (RAPL): a
rank reads its own GPU, and the first rank of a node reads the node's CPUs. RAPL counts the whole
node, including others' jobs, and most systems let only root read it (CVE-2020-8694). Neither counts
fans, power supplies, the network and idle GPUs.

NVML: nvmlDeviceGetTotalEnergyConsumption, millijoules since the driver was loaded, from Volta on.
RAPL: energy_uj and max_energy_range_uj in microjoules (Linux, Documentation/power/powercap).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from verl_hpc.metrics.names import CPU, ENERGY, TIMING

POWERCAP = Path("/sys/class/powercap")
_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Counter:
    """A counter that grows, until it wraps around to 0 if it does."""

    name: str
    """Prefix of its metrics."""
    read: Callable[[], int]
    """Function that returns units since some moment; it may raise."""
    per: int
    """Units in one second or joule."""
    range: int = 0
    """Largest value before the counter wraps around; 0 if it never does."""
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
        self._lock = threading.Lock()
        self._operator = ""
        self._spent: dict[tuple[str, int], int] = {}
        """Units by metric, and how many of them are one second or joule."""
        self._last = {counter: counter.read() for counter in (*CLOCKS, *counters)}

    def enter(self, operator: str) -> None:
        """Attribute all until now to the previous operator, and from now on to this one; "" is
        none."""
        with self._lock:
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

    def tick(self, *_: object) -> None:
        """Read the counters; must be called more often than RAPL's wrap around (some minutes)."""
        with self._lock:
            self._take()

    def drain(self) -> dict[str, float]:
        """Return all since the last drain as `timing_s/<operator>`, `cpu_s/<operator>` and
        `energy_j/<source>/<operator>`, and the seconds in all as `timing_s/step` and
        `cpu_s/step`."""
        with self._lock:
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
            used = now - last
            if used < 0:  # RAPL began again at 0; NVML, whose driver was loaded anew, is at a loss
                used = max(used + counter.range, 0)
            self._last[counter] = now
            for name in (self._operator or counter.idle, counter.whole):
                if name:
                    metric = f"{counter.name}{name}", counter.per
                    self._spent[metric] = self._spent.get(metric, 0) + used


def find_counters(
    gpu_uuid: str | None, reads_node: bool, powercap: Path = POWERCAP
) -> list[Counter]:
    """Return the counters of joules that this rank should and can read.

    Args:
        gpu_uuid: id of its GPU, with or without "GPU-" before it; None without a GPU.
        reads_node: whether it also reads the node's CPUs and memory.
        powercap: directory of Linux's RAPL files.
    """
    gpu = [] if gpu_uuid is None else _nvml(gpu_uuid.removeprefix("GPU-"))
    return gpu + (_rapl(powercap) if reads_node else [])


def joules(source: str, microjoules: Callable[[], int], range_uj: int = 0) -> Counter:
    """Return a counter of energy; its source is "nvml" or "rapl"."""
    return Counter(f"{ENERGY}{source}/", microjoules, 10**6, range_uj, idle="other")


def _nvml(uuid: str) -> list[Counter]:
    """Return the GPU's counter; none without NVIDIA's driver or on GPUs without one (before Volta,
    MIG)."""
    try:
        import pynvml
    except ImportError:
        return []
    nvml: Any = pynvml
    try:
        nvml.nvmlInit()
        handle = nvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
        nvml.nvmlDeviceGetTotalEnergyConsumption(handle)
    except nvml.NVMLError:
        return []
    return [joules("nvml", lambda: 1000 * int(nvml.nvmlDeviceGetTotalEnergyConsumption(handle)))]


def _rapl(powercap: Path) -> list[Counter]:
    """Return counters of each package (socket) with its cores, and of memory with a zone of its
    own."""
    counters = []
    for zone in sorted(powercap.glob("intel-rapl:*")):
        try:
            name = (zone / "name").read_text().strip()
            if name != "dram" and not name.startswith("package-"):
                continue
            energy = zone / "energy_uj"
            energy.read_text()
            range_uj = int((zone / "max_energy_range_uj").read_text())
        except OSError:  # not ours to read
            continue
        counters.append(joules("rapl", lambda file=energy: int(file.read_text()), range_uj))  # type: ignore[misc]
    return counters
