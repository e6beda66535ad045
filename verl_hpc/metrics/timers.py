"""Seconds by operator."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from verl_hpc.metrics.names import STEP_SECONDS, TIMING


class Timers:
    """Adds up host seconds by operator between two calls of `drain`.

    A timer inside another is named below it, so the top-level names never count a second twice::

        with timers("rollout"):
            with timers("reshard"): ...

        timing_s/rollout, timing_s/rollout/reshard
    """

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}
        self._running: list[str] = []
        self._drained = time.perf_counter()

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        """Time a block, also one that raises. A name used again adds to its seconds."""
        self._running.append(name)
        path = "/".join(self._running)
        start = time.perf_counter()
        try:
            yield
        finally:
            elapsed = time.perf_counter() - start
            self._seconds[path] = self._seconds.get(path, 0.0) + elapsed
            self._running.pop()

    def drain(self) -> dict[str, float]:
        """Seconds of each timer as `timing_s/<name>`, and as `timing_s/step` all the time since
        the last drain; starts over from zero."""
        now = time.perf_counter()
        values = {TIMING + name: seconds for name, seconds in self._seconds.items()}
        values[STEP_SECONDS] = now - self._drained
        self._seconds.clear()
        self._drained = now
        return values
