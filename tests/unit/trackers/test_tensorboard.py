"""Event files that TensorBoard itself reads back."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from verl_hpc.trackers.tensorboard import EventFile

accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")


def scalars(directory: Path, tag: str) -> list[tuple[int, float]]:
    events = accumulator.EventAccumulator(str(directory)).Reload()
    return [(event.step, event.value) for event in events.Scalars(tag)]


def write_steps(directory: Path, values: dict[int, float], resumed_from: int | None) -> None:
    sink = EventFile(directory, resumed_from)
    for step, value in values.items():
        sink.write(step, {"critic/score/mean": value})
    sink.close()


def test_scalars_read_back_and_a_resumed_run_hides_the_steps_that_are_done_again(tmp_path):
    for values, resumed_from, read in (
        ({1: 0.25, 2: 0.5, 3: 3.0, 4: 4.0}, None, [(1, 0.25), (2, 0.5), (3, 3.0), (4, 4.0)]),
        ({3: 30.0}, 2, [(1, 0.25), (2, 0.5), (3, 30.0)]),
        ({1: 10.0}, None, [(1, 10.0)]),
    ):
        write_steps(tmp_path, values, resumed_from)
        assert scalars(tmp_path, "critic/score/mean") == read


def test_nan_reads_back(tmp_path):
    write_steps(tmp_path, {1: math.nan}, None)
    ((_, value),) = scalars(tmp_path, "critic/score/mean")
    assert math.isnan(value)
