"""Bytes of the roles and the engine that share ranks, added up role by role."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class RankBytes(NamedTuple):
    """Bytes of the roles and the engine of one rank."""

    resident: int = 0
    """Held from step to step while training computes."""
    computing: int = 0
    """Additional peak while the largest role computes."""
    sending: int = 0
    """Held while weights are sent to the engine, with what arrives there."""
    generating: int = 0
    """Held while the engine generates."""
    communicators: int = 0
    """Communicators of the layout that has most."""
    host_building: int = 0
    """Host memory while the rollout engine is built."""
    host_saving: int = 0
    """Host memory while a checkpoint is written."""

    def plus(self, other: RankBytes) -> RankBytes:
        """Add another role on the same rank; only one computes at a time."""
        return RankBytes(
            self[0] + other[0],
            self[1] if self[1] > other[1] else other[1],
            self[2] + other[2],
            self[3] + other[3],
            self[4] if self[4] > other[4] else other[4],
            self[5] + other[5],
            self[6] + other[6],
        )

    @property
    def device(self) -> int:
        """Peak device bytes."""
        return max(self[0] + self[1], self[2], self[3]) + self[4]

    @property
    def host(self) -> int:
        """Peak host bytes."""
        return max(self[5], self[6])


class SetBytes(NamedTuple):
    """Bytes of the first and the last rank of a set, which are the first and the last stage of each
    pipeline."""

    first: RankBytes = RankBytes()
    last: RankBytes = RankBytes()

    def plus(self, other: SetBytes) -> SetBytes:
        """Add another role on the same ranks."""
        return SetBytes(self[0].plus(other[0]), self[1].plus(other[1]))


def least_bytes(found: Sequence[SetBytes]) -> SetBytes:
    """Element-wise minimum."""
    first, last = (
        RankBytes(*map(min, zip(*ranks, strict=True))) for ranks in zip(*found, strict=True)
    )
    return SetBytes(first, last)


class Limits(NamedTuple):
    """Limits on the bytes of one rank; None is no limit."""

    device: int | None
    host: int | None

    def admit(self, found: SetBytes) -> bool:
        """Whether these bytes fit."""
        device, host = self
        for rank in found:
            if device is not None and rank.device > device:
                return False
            if host is not None and rank.host > host:
                return False
        return True
