"""Hardware, with the factors that give the reached fraction of its peaks."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from verl_hpc.hardware.node import Hardware
from verl_hpc.planner.timing.collectives import Fabric
from verl_hpc.planner.timing.cost import Cost, Efficiency, Term


@dataclass(frozen=True)
class Machine:
    """Costs of work on one rank's device and on the links between ranks."""

    hardware: Hardware
    efficiency: Efficiency = field(default_factory=Efficiency)
    counts_waiting: bool = True
    """Whether a pass includes the time in which a stage waits for another, which takes no CPU."""
    of_first_rank: bool = False
    """Time the first pipeline stage instead of the slowest."""

    @cached_property
    def fabric(self) -> Fabric:
        return Fabric(self.hardware)

    def seconds(self, cost: Cost) -> float:
        return self.efficiency.seconds(cost)

    def peak(self, dtype: str) -> float:
        """Peak FLOPs a second of matrix products."""
        return 1e12 * self.hardware.kind.peak_tflops(dtype)

    def products(self, kind: Term, flops: float, read: float, dtype: str) -> Cost:
        """Cost of products that read `read` bytes of weights: the slower side of the roofline."""
        compute = flops / self.peak(dtype)
        memory = read / self._memory
        slower = self.efficiency.of(kind) * compute >= self.efficiency.of("memory") * memory
        return {kind: compute} if slower else {"memory": memory}

    def memory(self, num_bytes: float) -> Cost:
        """Cost of bytes that device memory reads or writes once."""
        return {"memory": num_bytes / self._memory}

    def elementwise(self, num_bytes: float) -> Cost:
        """Cost of bytes of activations that kernels between products read or write."""
        return {"elementwise": num_bytes / self._memory}

    def pcie(self, num_bytes: float) -> Cost:
        """Cost of bytes copied to or from host memory."""
        return {"pcie": num_bytes / (1e9 * self.hardware.kind.pcie_gb_s)}

    @property
    def _memory(self) -> float:
        return 1e9 * self.hardware.memory_gb_s
