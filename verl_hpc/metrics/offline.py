"""Base of trackers that log to an offline run of their own package."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class OfflineRun:
    """A sink that logs finished steps.

    Args:
        run: object with `log(values, step=...)` and `finish()`.
    """

    def __init__(self, run: Any) -> None:
        self._run = run

    def stage(self, name: str) -> None:
        """Ignore stages: these runs have finished steps only."""

    def write(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        self._run.finish()
