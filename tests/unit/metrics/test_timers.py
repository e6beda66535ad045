"""Seconds by operator, none of them counted twice."""

from __future__ import annotations

import pytest

from verl_hpc.metrics.timers import Stages, Timers


class Clock:
    """Stands in for time.perf_counter; CPUs work a quarter of its time."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def cpu(self) -> float:
        return self.now / 4

    def wait(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("verl_hpc.metrics.timers.time.perf_counter", clock)
    monkeypatch.setattr("verl_hpc.metrics.timers.time.process_time", clock.cpu)
    return clock


def test_operators_add_up_and_the_step_is_all_the_time(clock: Clock) -> None:
    timers = Timers()
    for seconds in (2.0, 3.0):
        with timers("rollout"):
            clock.wait(seconds)
    with timers("reward"):
        clock.wait(0.5)
    clock.wait(0.25)
    assert timers.drain() == {
        "timing_s/rollout": 5.0,
        "timing_s/reward": 0.5,
        "timing_s/step": 5.75,
        "cpu_s/rollout": 1.25,
        "cpu_s/reward": 0.125,
        "cpu_s/step": 1.4375,
    }


def test_a_nested_timer_is_named_below_its_outer_one(clock: Clock) -> None:
    timers = Timers()
    with timers("rollout"):
        clock.wait(1.0)
        with timers("reshard"):
            clock.wait(2.0)
    with timers("reshard"):
        clock.wait(4.0)
    values = timers.drain()
    assert values["timing_s/rollout"] == 3.0
    assert values["timing_s/rollout/reshard"] == 2.0
    assert values["timing_s/reshard"] == 4.0
    assert values["cpu_s/rollout/reshard"] == 0.5
    timings = {name: v for name, v in values.items() if name.startswith("timing_s/")}
    top_level = sum(v for name, v in timings.items() if name.count("/") == 1)
    assert top_level == 2 * values["timing_s/step"]


def test_draining_starts_over(clock: Clock) -> None:
    timers = Timers()
    with timers("rollout"):
        clock.wait(1.0)
    timers.drain()
    clock.wait(2.0)
    assert timers.drain() == {"timing_s/step": 2.0, "cpu_s/step": 0.5}


def test_a_block_that_raises_is_timed(clock: Clock) -> None:
    timers = Timers()
    with pytest.raises(ZeroDivisionError), timers("update"):
        clock.wait(1.0)
        raise ZeroDivisionError
    with timers("reward"):
        clock.wait(1.0)
    assert timers.drain() == {
        "timing_s/update": 1.0,
        "timing_s/reward": 1.0,
        "timing_s/step": 2.0,
        "cpu_s/update": 0.25,
        "cpu_s/reward": 0.25,
        "cpu_s/step": 0.5,
    }


def test_a_stage_ends_the_one_before_also_after_an_error(clock: Clock) -> None:
    timers = Timers()
    with pytest.raises(ValueError, match="broken"), Stages() as stages:
        for name, seconds in (("rollout", 2.0), ("update", 3.0), ("rollout", 0.5)):
            stages.begin(timers(name), timers("inside"))
            clock.wait(seconds)
        raise ValueError("broken")
    clock.wait(4.0)
    found = timers.drain()
    assert found["timing_s/rollout"] == found["timing_s/rollout/inside"] == 2.5
    assert found["timing_s/update"] == 3.0
    assert found["timing_s/step"] == 9.5
