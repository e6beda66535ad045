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
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr("verl_hpc.metrics.timers.time.perf_counter", clock)
    monkeypatch.setattr("verl_hpc.metrics.timers.time.process_time", clock.cpu)
    return clock


def spent(**seconds):
    """What timers say of these seconds by operator."""
    times = {f"timing_s/{name}": value for name, value in seconds.items()}
    return times | {f"cpu_s/{name}": value / 4 for name, value in seconds.items()}


def test_operators_add_up_and_the_step_is_all_the_time(clock):
    timers = Timers()
    for seconds in (2.0, 3.0):
        with timers("rollout"):
            clock.wait(seconds)
    with timers("reward"):
        clock.wait(0.5)
    clock.wait(0.25)
    assert timers.drain() == spent(rollout=5.0, reward=0.5, step=5.75)


def test_a_nested_timer_is_named_below_its_outer_one(clock):
    timers = Timers()
    with timers("rollout"):
        clock.wait(1.0)
        with timers("reshard"):
            clock.wait(2.0)
    with timers("reshard"):
        clock.wait(4.0)
    seconds = {"rollout": 3.0, "rollout/reshard": 2.0, "reshard": 4.0, "step": 7.0}
    assert timers.drain() == spent(**seconds), "the outermost ones make up the step"


def test_draining_starts_over(clock):
    timers = Timers()
    with timers("rollout"):
        clock.wait(1.0)
    timers.drain()
    clock.wait(2.0)
    assert timers.drain() == spent(step=2.0)


def test_a_block_that_raises_is_timed(clock):
    timers = Timers()
    with pytest.raises(ZeroDivisionError), timers("update"):
        clock.wait(1.0)
        raise ZeroDivisionError
    with timers("reward"):
        clock.wait(1.0)
    assert timers.drain() == spent(update=1.0, reward=1.0, step=2.0)


def test_a_stage_ends_the_one_before_also_after_an_error(clock):
    timers = Timers()
    with pytest.raises(ValueError, match="broken"), Stages() as stages:
        for name, seconds in (("rollout", 2.0), ("update", 3.0), ("rollout", 0.5)):
            stages.begin(timers(name), timers("inside"))
            clock.wait(seconds)
        raise ValueError("broken")
    clock.wait(4.0)
    values = timers.drain()
    assert values["timing_s/rollout"] == values["timing_s/rollout/inside"] == 2.5
    assert (values["timing_s/update"], values["timing_s/step"]) == (3.0, 9.5)
