"""A trace and a memory snapshot of a GPU."""

import gzip
import json

import pytest
import torch

from verl_hpc.config.output import ProfileConfig
from verl_hpc.metrics.traces import Traces

pytestmark = pytest.mark.gpu


def test_a_trace_has_kernels_and_memory_has_a_snapshot(tmp_path):
    traces = Traces(ProfileConfig(steps=[1], memory=True), tmp_path, 0, "cuda:0")
    traces.begin(1)
    traces.enter("update_actor")
    data = torch.ones(256, 256, device="cuda:0")
    (data @ data).sum().item()
    assert traces.stop()
    traces.write()
    trace = tmp_path / "profiles/step_000001_rank_0.json.gz"
    snapshot = tmp_path / "profiles/memory_step_000001_rank_0.pickle"
    with gzip.open(trace) as text:
        events = json.load(text)["traceEvents"]
    assert "update_actor" in {event["name"] for event in events}
    assert any(event.get("cat") == "kernel" for event in events)
    assert snapshot.stat().st_size > 0
    assert len(list((tmp_path / "profiles").iterdir())) == 2
