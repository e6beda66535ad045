"""The memory of one rank in one phase of a run, term by term."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

PHASES = ("build", "load", "reshard", "generate", "log_probs", "update", "save")
"""Phases in the order in which a run first reaches them."""
GIB = 2**30


@dataclass(frozen=True)
class Phase:
    """Bytes of one rank at the fullest moment of a phase."""

    name: str
    """One of PHASES."""
    of: str
    """The role that is built, computed or trained, or `rollout`; empty for a phase of all roles."""
    rank: int
    device: Mapping[str, int]
    """Device bytes by term: `actor.weights`, `rollout.kv_cache`, `context`, ...; zero terms are
    left out."""
    host: Mapping[str, int]
    """Host bytes by term, for this rank alone."""
    limit_bytes: int | None
    """Device memory; None where it is unknown."""
    host_limit_bytes: int | None
    """The rank's equal share of its node's memory."""
    is_shared: bool = False
    """Whether the device is the node's memory: ranks that compute on cores."""
    problem: str | None = None
    """Reason for a refusal although the sum would fit."""
    needed_bytes: int = 0
    """Bytes that a refused engine needs."""

    @property
    def device_bytes(self) -> int:
        return sum(self.device.values())

    @property
    def host_bytes(self) -> int:
        return sum(self.host.values())

    @property
    def room_bytes(self) -> int | None:
        """Free device bytes, negative where it does not fit; None without a limit."""
        if self.limit_bytes is None:
            return None
        return self.limit_bytes - self.device_bytes - (self.host_bytes if self.is_shared else 0)

    @property
    def host_room_bytes(self) -> int | None:
        """Free host bytes, negative where it does not fit; None without a limit."""
        if self.host_limit_bytes is None:
            return None
        return self.host_limit_bytes - self.host_bytes - (self.device_bytes * self.is_shared)

    @property
    def fits(self) -> bool:
        rooms = (self.room_bytes, self.host_room_bytes)
        return self.problem is None and all(room is None or room >= 0 for room in rooms)

    @property
    def key(self) -> tuple[str, str]:
        """What tells the phases of a rank apart."""
        return self.name, self.of

    @property
    def title(self) -> str:
        return f"{self.name} ({self.of})" if self.of else self.name

    def why_not(self) -> str:
        """Describe what does not fit, with the largest terms."""
        if self.problem:
            return f"{self.title}, rank {self.rank}: {self.problem}"
        room, limit, terms, where = self.room_bytes, self.limit_bytes, self.device, "device"
        # Blame the device, the memory it shares with the host, or else host memory.
        if self.is_shared:
            terms, where = {**self.device, **self.host}, "memory"
        elif room is None or room >= 0:
            limit, terms, where = self.host_limit_bytes, self.host, "host memory"
        total = sum(terms.values())
        largest = sorted(terms.items(), key=lambda item: -item[1])[:4]
        named = ", ".join(f"{name} {size / GIB:.1f}" for name, size in largest)
        return (
            f"{self.title}, rank {self.rank}: {total / GIB:.1f} GiB of {where}, which has "
            f"{(limit or 0) / GIB:.1f} ({named})"
        )
