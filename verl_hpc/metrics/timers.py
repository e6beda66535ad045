"""Measure seconds by operator, of the clock and of the process's CPUs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

from verl_hpc.metrics.names import CPU, STEP_SECONDS, TIMING


class Timers:
    """Adds up seconds by operator between two calls of `drain`: those of the host's clock, and
    those of CPUs in all threads of this process.

    A timer inside another is named below it, so the top-level names never count a second twice::

        with timers("rollout"):
            with timers("reshard"): ...

        timing_s/rollout, timing_s/rollout/reshard, cpu_s/rollout, cpu_s/rollout/reshard
    """

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}
        self._cpu: dict[str, float] = {}
        self._running: list[str] = []
        self._drained, self._drained_cpu = time.perf_counter(), time.process_time()

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        """Time a block, also one that raises. A name used again adds to its seconds."""
        self._running.append(name)
        path = "/".join(self._running)
        start, cpu = time.perf_counter(), time.process_time()
        try:
            yield
        finally:
            elapsed, worked = time.perf_counter() - start, time.process_time() - cpu
            self._seconds[path] = self._seconds.get(path, 0.0) + elapsed
            self._cpu[path] = self._cpu.get(path, 0.0) + worked
            self._running.pop()

    def drain(self) -> dict[str, float]:
        """Return the seconds of each timer as `timing_s/<name>` and `cpu_s/<name>`, and all seconds
        since the last drain as `timing_s/step` and `cpu_s/step`; then start from zero."""
        now, cpu = time.perf_counter(), time.process_time()
        values = {TIMING + name: seconds for name, seconds in self._seconds.items()}
        values |= {CPU + name: seconds for name, seconds in self._cpu.items()}
        values[STEP_SECONDS] = now - self._drained
        values[CPU + "step"] = cpu - self._drained_cpu
        self._seconds.clear()
        self._cpu.clear()
        self._drained, self._drained_cpu = now, cpu
        return values


class Stages(ExitStack):
    """Context managers that last for one operator of a step, until the next one begins."""

    def begin(self, *blocks: AbstractContextManager[Any]) -> None:
        """Exit the current ones, and enter these."""
        self.close()
        for block in blocks:
            self.enter_context(block)
