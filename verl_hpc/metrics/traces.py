"""Write traces of torch.profiler: what a rank's CPU and GPU did in a step, by operator."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from verl_hpc.config.output import ProfileConfig

DIRECTORY = "profiles"
"""Directory below the run directory."""
_MOST_EVENTS = 1_000_000
"""Most allocations and frees in a memory snapshot."""


class Traces:
    """Traces the steps of `runtime.profile` on one of its ranks.

    A step leaves `profiles/step_000002_rank_0.json.gz`, in Chrome's format, with a range for each
    operator of the recipe around what PyTorch did in it; with `memory` also
    `profiles/memory_step_000002_rank_0.pickle` on a GPU, which PyTorch writes for its viewer
    (pytorch.org/memory_viz), and which nothing here reads.

    Args:
        config: steps to trace, and what of them.
        run_directory: an existing directory.
        rank: this process's rank.
        device: "cpu", or the name of a GPU.
    """

    def __init__(self, config: ProfileConfig, run_directory: Path, rank: int, device: str) -> None:
        self._config, self._directory, self._rank = config, run_directory / DIRECTORY, rank
        self._on_gpu = device != "cpu"
        self._profiler: Any = None
        self._runs = False
        self._range: Any = None
        self._step = 0

    def begin(self, step: int) -> None:
        """Start tracing, if the step is one to trace."""
        if step not in self._config.steps:
            return
        from torch.profiler import ProfilerActivity, profile

        activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if self._on_gpu else [])]
        self._step = step
        self._profiler = profile(activities=activities, profile_memory=self._config.memory)
        if self._config.memory and self._on_gpu:
            torch.cuda.memory._record_memory_history(max_entries=_MOST_EVENTS)
        self._profiler.start()
        self._runs = True

    def enter(self, operator: str) -> None:
        """End the current range of the trace, and begin one of an operator; "" begins none."""
        if self._range is not None:
            self._range.__exit__(None, None, None)
            self._range = None
        if operator and self._runs:
            self._range = torch.profiler.record_function(operator)
            self._range.__enter__()

    def stop(self) -> bool:
        """Stop tracing; return whether there is a trace to write."""
        self.enter("")
        was_on, self._runs = self._runs, False
        if was_on:
            self._profiler.stop()
        return was_on

    def write(self) -> None:
        """Write the files of the step that `stop` ended; each appears whole."""
        name = f"step_{self._step:06d}_rank_{self._rank}"
        self._directory.mkdir(exist_ok=True)
        # The ending .gz makes the profiler compress the file.
        part = self._directory / f"part_{name}.json.gz"
        self._profiler.export_chrome_trace(str(part))
        part.replace(self._directory / f"{name}.json.gz")
        self._profiler = None
        if self._config.memory and self._on_gpu:
            part = self._directory / f"part_{name}.pickle"
            torch.cuda.memory._dump_snapshot(str(part))
            torch.cuda.memory._record_memory_history(enabled=None)
            part.replace(self._directory / f"memory_{name}.pickle")
