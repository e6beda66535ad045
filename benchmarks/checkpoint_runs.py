"""Runs whose saves are timed, for benchmarks.checkpoint."""

from __future__ import annotations

import statistics
import time
from pathlib import Path
from typing import Any

from verl_hpc.runtime.session import Session

EVERY = 3


def measure_fixed_cost(here: Session, directory: Path, repetitions: int) -> dict[str, Any]:
    """CPU seconds of a rank, and seconds, that a save of a tiny model takes, from its begin until
    it is there."""
    from verl_hpc.data.order import Position
    from verl_hpc.trainer.build import build_run
    from verl_hpc.trainer.saves import Saves
    from verl_hpc.trainer.state import Progress

    run = build_run(here, _config(here, directory, "fixed", 128, 3))
    saves, rows = Saves(run), []
    for step in range(1, repetitions + 2):
        here.control.barrier()
        begin, cpu = time.perf_counter(), time.process_time()
        saves.begin(Progress(step, Position(0, step)))
        saves.finish()
        spent = time.process_time() - cpu, time.perf_counter() - begin
        rows.append(here.control.allgather(spent))
    each = [
        {
            "busiest_cpu": max(cpu for cpu, _ in row),
            "others_cpu": statistics.mean(sorted(cpu for cpu, _ in row)[:-1] or [0.0]),
            "wall": max(wall for _, wall in row),
        }
        for row in rows
    ]
    later = {key: statistics.median(found[key] for found in each[1:]) for key in each[0]}
    return {
        "parameters": run.arch.num_parameters,
        "later": repetitions,
        "raw": rows,
        "saves": {"the first": each[0], "later": later},
    }


def measure_stall(here: Session, directory: Path, steps: int) -> dict[str, Any]:
    """How long the main thread of a run waits for its saves, and what its steps take."""
    found: dict[str, Any] = {"ways": {}}
    for background in (True, False):
        config = _config(here, directory, f"background-{background}", 2048, 4, steps, background)
        stalls, seconds, saved_bytes, times = _watched_run(here, config)
        if background:  # weights, and an optimizer's three float32 of each
            found |= {"first_stall": stalls[0], "saved_bytes": saved_bytes}
            found |= {"parameters": saved_bytes // 16, "count": len(stalls) - 2}
        found["ways"]["yes" if background else "no"] = {
            "stall": statistics.median(stalls[1:-1]),
            "save": statistics.median(seconds[1:-1]),
            "stalls": stalls,
            "saves": seconds,
            **times,
        }
    return found


def _watched_run(here: Session, config: Any) -> Any:
    """Of a run: by save, what its slowest rank's main thread waited and what it took; the rest."""
    from verl_hpc.metrics.log import read_metrics
    from verl_hpc.trainer import loop
    from verl_hpc.trainer.saves import Saves
    from verl_hpc.trainer.train import train

    watched: list[_WatchedSaves] = []

    class _WatchedSaves(Saves):
        """Adds up the time in its methods, by save."""

        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            watched.append(self)
            self.stalls: list[float] = []
            self.took: dict[int, float] = {}
            self.inside = False
            let_change = self.writer.let_change
            self.writer.let_change = lambda: self._count(let_change)  # type: ignore[method-assign]

        def _count(self, work: Any, *arguments: Any) -> None:
            if self.inside:  # begin finishes the save before, which it is by then
                work(*arguments)
                return
            self.inside, before, begin = True, self.writer.newest, time.perf_counter()
            work(*arguments)
            self.inside = False
            if self.writer.newest > before:
                self.stalls.append(0.0)
            if self.stalls:
                self.stalls[-1] += time.perf_counter() - begin
                self.took[len(self.stalls)] = self.writer.seconds

        def begin(self, *arguments: Any) -> None:
            self.finish()
            self._count(super().begin, *arguments)

        def look(self) -> None:
            self._count(super().look)

        def finish(self) -> None:
            self._count(super().finish)

    loop.Saves, before = _WatchedSaves, loop.Saves  # type: ignore[assignment,misc]
    try:
        train(here, config)
    finally:
        loop.Saves = before  # type: ignore[assignment,misc]
    (saves,) = watched
    ranks = here.control.allgather(
        (saves.stalls, list(saves.took.values()), saves.writer.copy_bytes)
    )
    stalls = [max(values) for values in zip(*(r[0] for r in ranks), strict=True)]
    seconds = [max(values) for values in zip(*(r[1] for r in ranks), strict=True)]
    times: dict[str, Any] = {}
    if here.world.rank == 0:
        # Without the steps up to the one beside the first save.
        rows = [row for row in read_metrics(config.run_directory) if row["step"] > EVERY + 1]
        step = {row["step"]: row["timing_s/step"] - row.get("timing_s/save_checkpoint", 0.0)
                for row in rows}  # fmt: skip
        times["step_after_save"] = statistics.median(t for s, t in step.items() if s % EVERY == 1)
        times["other_step"] = statistics.median(t for s, t in step.items() if s % EVERY != 1)
    return stalls, seconds, sum(r[2] for r in ranks), here.control.broadcast(times)


def _config(
    here: Session,
    directory: Path,
    name: str,
    hidden_size: int,
    num_layers: int,
    steps: int = 1,
    background: bool = True,
) -> Any:
    """Of a GRPO run on this world's ranks; rank 0 makes its model."""
    from verl_hpc.config.load import parse_config
    from verl_hpc.testing.tiny import make_tiny_model

    model = directory / f"model-{hidden_size}"
    if here.world.rank == 0 and not model.exists():
        make_tiny_model(
            model,
            "qwen2",
            hidden_size=hidden_size,
            num_hidden_layers=num_layers,
            num_attention_heads=8,
            num_key_value_heads=4,
        )
    here.control.barrier()
    gym = {"kind": "reasoning_gym", "task": "chain_sum", "size": 64}
    return parse_config(
        {
            "name": name,
            "recipe": "rl",
            "steps": steps,
            "directory": str(directory / "runs"),
            "model": {"path": str(model), "dtype": "float32"},
            "parallel": {"tensor_parallel": min(2, here.world.size)},
            "batch": {"size": 4},
            "rollout": {
                "engine": "hf",
                "num_samples": 2,
                "max_prompt_tokens": 128,
                "max_response_tokens": 8,
            },
            "data": {"train": gym},
            "reward": {"function": "exact_match"},
            "checkpoint": {"every": EVERY, "keep": 1, "background": background},
            "metrics": {"terminal": "off", "report": False},
        }
    )
