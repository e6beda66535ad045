"""Event files that TensorBoard itself reads back."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import pytest

from verl_hpc.metrics.tensorboard import TensorBoard

accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")


def scalars(directory: Path, tag: str) -> list[tuple[int, float]]:
    events = accumulator.EventAccumulator(str(directory)).Reload()
    return [(event.step, event.value) for event in events.Scalars(tag)]


def write_steps(directory: Path, values: dict[int, float], resumed_from: int | None) -> None:
    sink = TensorBoard(directory, resumed_from)
    for step, value in values.items():
        sink.stage("rollout")
        sink.write(step, {"critic/score/mean": value})
    sink.close()


def test_scalars_read_back(tmp_path: Path) -> None:
    write_steps(tmp_path, {1: 0.25, 2: 0.5}, None)
    assert scalars(tmp_path, "critic/score/mean") == [(1, 0.25), (2, 0.5)]


def test_nan_reads_back(tmp_path: Path) -> None:
    write_steps(tmp_path, {1: math.nan}, None)
    ((_, value),) = scalars(tmp_path, "critic/score/mean")
    assert math.isnan(value)


def test_a_resumed_run_hides_the_steps_that_are_done_again(tmp_path: Path) -> None:
    write_steps(tmp_path, {1: 1.0, 2: 2.0, 3: 3.0, 4: 4.0}, None)
    write_steps(tmp_path, {3: 30.0}, 2)
    assert scalars(tmp_path, "critic/score/mean") == [(1, 1.0), (2, 2.0), (3, 30.0)]


def test_a_run_that_starts_over_hides_all_steps(tmp_path: Path) -> None:
    write_steps(tmp_path, {1: 1.0, 2: 2.0}, None)
    write_steps(tmp_path, {1: 10.0}, None)
    assert scalars(tmp_path, "critic/score/mean") == [(1, 10.0)]


def test_torch_is_not_needed(tmp_path: Path) -> None:
    code = (
        "import sys, pathlib; from verl_hpc.metrics.tensorboard import TensorBoard\n"
        f"TensorBoard(pathlib.Path({str(tmp_path)!r})).close(); print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
