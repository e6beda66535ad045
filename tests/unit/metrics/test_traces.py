"""Steps and ranks that are traced, and what a trace has."""

from __future__ import annotations

import gzip
import json

import torch

from tests.unit.trainer.runs import small_run
from verl_hpc.config.output import ProfileConfig
from verl_hpc.metrics.traces import Traces
from verl_hpc.trainer.records import open_records


def take_step(traces: Traces, step: int) -> bool:
    traces.begin(step)
    for name in ("rollout", "update_actor"):
        traces.enter(name)
        torch.ones(8, 8) @ torch.ones(8, 8)
    if traces.stop():
        traces.enter("not in it")
        traces.write()
        return True
    return False


def test_steps_that_are_named_leave_a_trace_each(tmp_path):
    traces = Traces(ProfileConfig(steps=[2, 4], ranks=[0, 3]), tmp_path, 3, "cpu")
    assert [take_step(traces, step) for step in range(1, 6)] == [False, True, False, True, False]
    files = sorted((tmp_path / "profiles").iterdir())
    assert [f.name for f in files] == [f"step_00000{n}_rank_3.json.gz" for n in (2, 4)]
    for file in files:
        with gzip.open(file) as text:
            events = json.load(text)["traceEvents"]
        ranges = {e["name"]: e for e in events if e.get("cat") == "user_annotation"}
        assert set(ranges) == {"rollout", "update_actor"}
        products = [e for e in events if e["name"] == "aten::mm"]
        assert len(products) == 2
        for product, outer in zip(products, ranges.values(), strict=True):
            assert outer["ts"] <= product["ts"] <= outer["ts"] + outer["dur"]
        assert not [e for e in events if e["name"] == "[memory]"]


def test_memory_on_cpu_ranks_is_that_of_the_allocator(tmp_path):
    traces = Traces(ProfileConfig(steps=[1], memory=True), tmp_path, 0, "cpu")
    assert take_step(traces, 1)
    (file,) = (tmp_path / "profiles").iterdir()
    with gzip.open(file) as text:
        events = json.load(text)["traceEvents"]
    sizes = {e["args"]["Bytes"] for e in events if e["name"] == "[memory]"}
    assert {4 * 8 * 8, -4 * 8 * 8} <= sizes


def test_only_ranks_that_are_named_trace_and_none_without_a_profile(tmp_path):
    for number, (profile, rank, traces) in enumerate(
        [(None, 0, False), ({"steps": [1]}, 0, True), ({"steps": [1]}, 1, False)]
    ):
        run = small_run(tmp_path, name=str(number), runtime__profile=profile)
        run.rank = rank
        with open_records(run, None) as records:
            assert bool(records.traces) is traces
