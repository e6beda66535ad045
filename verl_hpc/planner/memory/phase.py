"""What one rank has in one phase of a run, term by term."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

PHASES = ("build", "load", "reshard", "generate", "log_probs", "update", "save")
"""In the order in which a run first comes to them."""
GIB = 2**30


@dataclass(frozen=True)
class Phase:
    """Bytes of one rank at the fullest moment of a phase."""

    name: str
    """One of PHASES."""
    of: str
    """The role that is built, computed or trained, or rollout; empty where it is all of them."""
    rank: int
    device: Mapping[str, int]
    """By term: `actor.weights`, `rollout.kv_cache`, `context`, ...; those of zero are left out."""
    host: Mapping[str, int]
    """The same of the node's memory, for this rank alone."""
    limit_bytes: int | None
    """That the device has; None where it is not known."""
    host_limit_bytes: int | None
    """The rank's equal share of its node's memory."""
    is_shared: bool = False
    """Whether the device is the node's memory: ranks that compute on cores."""
    problem: str | None = None
    """What is refused although the sum would fit."""
    needed_bytes: int = 0
    """That a refused engine needs."""

    @property
    def device_bytes(self) -> int:
        return sum(self.device.values())

    @property
    def host_bytes(self) -> int:
        return sum(self.host.values())

    @property
    def room_bytes(self) -> int | None:
        """Left on the device; below zero where it does not fit; None without a limit."""
        if self.limit_bytes is None:
            return None
        return self.limit_bytes - self.device_bytes - (self.host_bytes if self.is_shared else 0)

    @property
    def host_room_bytes(self) -> int | None:
        """The same of host memory."""
        if self.host_limit_bytes is None:
            return None
        return self.host_limit_bytes - self.host_bytes - (self.device_bytes * self.is_shared)

    @property
    def lacks_host_memory(self) -> bool:
        """Whether host memory is what does not fit."""
        host, device = self.host_room_bytes, self.room_bytes
        if self.problem is not None or host is None or host >= 0:
            return False
        return self.is_shared or device is None or device >= 0

    @property
    def fits(self) -> bool:
        rooms = (self.room_bytes, self.host_room_bytes)
        return self.problem is None and all(room is None or room >= 0 for room in rooms)

    @property
    def title(self) -> str:
        return f"{self.name} ({self.of})" if self.of else self.name

    def why_not(self) -> str:
        """What does not fit, with the largest terms."""
        if self.problem:
            return f"{self.title}, rank {self.rank}: {self.problem}"
        room, limit, terms = self.room_bytes, self.limit_bytes, self.device
        where, total = "device", self.device_bytes
        if self.is_shared:
            terms = {**self.device, **self.host}
            where, total = "memory", self.device_bytes + self.host_bytes
        elif room is None or room >= 0:
            limit, terms, where, total = (
                self.host_limit_bytes,
                self.host,
                "host memory",
                self.host_bytes,
            )
        largest = sorted(terms.items(), key=lambda item: -item[1])[:4]
        named = ", ".join(f"{name} {size / GIB:.1f}" for name, size in largest)
        return (
            f"{self.title}, rank {self.rank}: {total / GIB:.1f} GiB of {where}, which has "
            f"{(limit or 0) / GIB:.1f} ({named})"
        )
