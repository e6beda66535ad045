"""Measure joules by operator, from energy counters of GPUs (NVML) and of CPUs and memory (RAPL).

A rank reads its own GPU, and the first rank of a node reads the node's CPUs. Counters are read
where one operator ends and the next begins, so that each joule goes to the operator under way on
that rank. RAPL counts the whole node, including others' jobs, and most systems let only root read
it (CVE-2020-8694). Neither counts fans, power supplies, the network and idle GPUs.

NVML: nvmlDeviceGetTotalEnergyConsumption, millijoules since the driver was loaded, from Volta on.
RAPL: energy_uj and max_energy_range_uj in microjoules (Linux, Documentation/power/powercap).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from verl_hpc.metrics.names import ENERGY

POWERCAP = Path("/sys/class/powercap")
_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Counter:
    """A counter of energy that grows until it wraps around to 0."""

    source: str
    """"nvml" or "rapl"."""
    read: Callable[[], int]
    """Function that returns microjoules since some moment; raises OSError or an error of NVML."""
    range_uj: int = 0
    """Largest value before the counter wraps around; 0 if it never does."""


class Meters:
    """Adds up microjoules by source and operator between two calls of `drain`.

    Args:
        counters: the counters that this rank reads.
    """

    def __init__(self, counters: Sequence[Counter]) -> None:
        self._lock = threading.Lock()
        self._operator = "other"
        self._spent: dict[str, int] = {}
        self._last = {counter: counter.read() for counter in counters}

    def enter(self, operator: str) -> None:
        """Attribute energy until now to the previous operator, and from now on to this one."""
        with self._lock:
            self._take()
            self._operator = operator

    def tick(self, *_: object) -> None:
        """Read the counters; must be called more often than RAPL's wrap around (some minutes)."""
        with self._lock:
            self._take()

    def drain(self) -> dict[str, float]:
        """Return joules since the last drain as `energy_j/<source>/<operator>`."""
        with self._lock:
            self._take()
            spent, self._spent = self._spent, {}
        return {name: microjoules / 1e6 for name, microjoules in spent.items()}

    def _take(self) -> None:
        for counter, last in list(self._last.items()):
            try:
                now = counter.read()
            except Exception as error:  # the driver's; a run does not end for want of a meter
                _logger.warning("%s is not read any more: %s", counter.source, error)
                del self._last[counter]
                continue
            used = now - last
            if used < 0:  # RAPL began again at 0; NVML, whose driver was loaded anew, is at a loss
                used = max(used + counter.range_uj, 0)
            self._last[counter] = now
            name = f"{ENERGY}{counter.source}/{self._operator}"
            self._spent[name] = self._spent.get(name, 0) + used


def find_counters(
    gpu_uuid: str | None, reads_node: bool, powercap: Path = POWERCAP
) -> list[Counter]:
    """Return the counters that this rank should and can read.

    Args:
        gpu_uuid: id of its GPU, with or without "GPU-" before it; None without a GPU.
        reads_node: whether it also reads the node's CPUs and memory.
        powercap: directory of Linux's RAPL files.
    """
    gpu = [] if gpu_uuid is None else _nvml(gpu_uuid.removeprefix("GPU-"))
    return gpu + (_rapl(powercap) if reads_node else [])


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
    return [Counter("nvml", lambda: 1000 * int(nvml.nvmlDeviceGetTotalEnergyConsumption(handle)))]


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
        counters.append(Counter("rapl", lambda file=energy: int(file.read_text()), range_uj))  # type: ignore[misc]
    return counters
