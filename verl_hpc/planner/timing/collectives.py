"""Collectives among ranks of a machine: rings over NVLink and the network.

A ring moves 2 (n - 1) / n of a buffer for an all-reduce, half of that for a reduce-scatter or an
all-gather, over the slowest link that it crosses; small ones take 2 log2 n steps, as NCCL's trees.
Gloo, on CPU ranks, has the ring alone, of 2 (n - 1) steps, and sums wholly where a part is wanted;
data-parallel ranks of one node read each other's memory instead (`engines.megatron.data_parallel`).
A group with k ranks in each of its nodes has the k network links of these.
"""

from __future__ import annotations

from math import ceil, log2

from verl_hpc.hardware.node import Hardware
from verl_hpc.planner.timing.cost import Cost

_NETWORK_HOPS = 4.0


class Fabric:
    """Costs of collectives and messages.

    Args:
        hardware: nodes filled with ranks one after another.
    """

    def __init__(self, hardware: Hardware) -> None:
        self._per_node = hardware.ranks_per_node
        self._is_gpu = hardware.kind.is_gpu
        self._inside = 1e9 * hardware.nvlink_gb_s
        self._network = 1e9 * hardware.network_gb_s
        self._memory = 1e9 * hardware.memory_gb_s

    def bandwidth(self, size: int, stride: int = 1) -> float:
        """Bytes a second of a ring of `size` ranks that are `stride` apart."""
        if not self.crosses_nodes(size, stride):
            return self._inside
        in_node = max(self._per_node // stride, 1)
        return min(self._inside, in_node * self._network)

    def crosses_nodes(self, size: int, stride: int = 1) -> bool:
        """Whether ranks that are `stride` apart are on several nodes."""
        return (size - 1) * stride >= self._per_node

    def all_reduce(self, num_bytes: float, size: int, stride: int = 1) -> Cost:
        """All-reduce; also a reduce-scatter followed by the matching all-gather."""
        return self._ring(2 * num_bytes, size, stride, 2.0)

    def sum_in_engine(self, num_bytes: float, size: int) -> Cost:
        """An all-reduce of a rollout engine, which has kernels of its own for small ones, on CPUs
        in shared memory."""
        cost = dict(self.all_reduce(num_bytes, size))
        if "hops" in cost:
            hops = cost.pop("hops")
            cost["decode_hops"] = hops if self._is_gpu else 2.0 * ceil(log2(size))
        return cost

    def all_gather(self, num_bytes: float, size: int, stride: int = 1) -> Cost:
        """All-gather among data-parallel ranks.

        Args:
            num_bytes: of the whole.
        """
        if self._reads(size, stride):
            return self._read(num_bytes, size)
        return self._ring(num_bytes, size, stride, 1.0)

    def reduce_scatter(self, num_bytes: float, size: int, stride: int = 1) -> Cost:
        """Reduce-scatter among data-parallel ranks.

        Args:
            num_bytes: of the whole.
        """
        sums_wholly = not (self._is_gpu or self._reads(size, stride))
        return (self.all_reduce if sums_wholly else self.all_gather)(num_bytes, size, stride)

    def all_to_all(self, num_bytes: float, size: int, stride: int = 1) -> Cost:
        """All-to-all in which every rank sends `num_bytes` in total, equally to each, over its own
        links."""
        if size == 1:
            return {}
        bandwidth = self._network if self.crosses_nodes(size, stride) else self._inside
        hops = _NETWORK_HOPS if self.crosses_nodes(size, stride) else 1.0
        return {"collective": num_bytes * (size - 1) / size / bandwidth, "hops": 2 * hops}

    def send(self, num_bytes: float, stride: int) -> Cost:
        """Send to the rank `stride` away."""
        crosses = stride >= self._per_node
        bandwidth = self._network if crosses else self._inside
        return {"collective": num_bytes / bandwidth, "hops": _NETWORK_HOPS if crosses else 1.0}

    def _reads(self, size: int, stride: int) -> bool:
        """Whether data-parallel ranks read each other's memory."""
        return not self._is_gpu and not self.crosses_nodes(size, stride)

    def _read(self, num_bytes: float, size: int) -> Cost:
        """Cost of reading the others' parts, then writing them or adding them up in caches; the
        ranks signal each other before and after."""
        if size == 1:
            return {}
        return {
            "memory": 2 * num_bytes * (size - 1) / size / self._memory,
            "hops": 2.0 * (size - 1),
        }

    def _ring(self, num_bytes: float, size: int, stride: int, directions: float) -> Cost:
        if size == 1:
            return {}
        hops = directions * (ceil(log2(size)) if self._is_gpu else size - 1)
        if self.crosses_nodes(size, stride):
            num_nodes = -(-size * stride // self._per_node)
            hops = directions * (
                ceil(log2(max(size / num_nodes, 1))) + _NETWORK_HOPS * ceil(log2(num_nodes))
            )
        seconds = num_bytes * (size - 1) / size / self.bandwidth(size, stride)
        return {"collective": seconds, "hops": hops}
