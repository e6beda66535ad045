"""A step on its way from the device to files, and back."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.dry_gpu.one_rank import SMALL, OneRank, one_rank
from tests.dry_gpu.rollout_rank import sum_in_one_kernel
from tests.dry_gpu.test_training import TP2, loss, sequences_of, within
from verl_hpc.checkpoint.host_copy import HostCopy
from verl_hpc.checkpoint.read import Step
from verl_hpc.checkpoint.step_files import Component, StepContents, datasets, parts_of
from verl_hpc.checkpoint.write import StepWriter
from verl_hpc.layout.shard_map import ShardMap, TensorSpec
from verl_hpc.layout.writers import assign_writers
from verl_hpc.runtime.one_rank import LocalControl, local_session
from verl_hpc.trainer.fill import fill


def components(one: OneRank) -> list[Component]:
    """What the rank writes: its part of the weights, and of the optimizer's state."""
    engine, rank = one.engine, one.gpu.rank
    states = engine.optimizer_map(primary=True)
    written = assign_writers(engine.shard_map)[rank]
    return [
        Component("actor", engine.shard_map, engine.weights, written),
        Component("actor.optimizer", states, engine.optimizer_tensors(), states.held_by(rank)),
    ]


@pytest.mark.slow
def test_a_rank_of_several_copies_its_part(gpu):
    one = one_rank(gpu, "Qwen3-8B", 3, 4, TP2, fields=SMALL)
    one.engine.update(sequences_of(one, [100, 200]), loss)
    parts, contents = components(one), StepContents()
    copy = HostCopy(datasets(parts, contents)[0], on_gpu=True)
    one.gpu.clear()
    copy.take(parts_of("0" * 16, parts, contents))
    assert one.gpu.waits == Counter({"synchronize: host_copy.take": 1})
    planned = next(p for p in one.phases() if p.name == "save").host["actor.saved"]
    within(copy.num_bytes, planned, 0.01)


def test_a_saved_step_is_read_back(gpu, tmp_path, monkeypatch):
    sum_in_one_kernel(monkeypatch)
    optimizer = {"lr": 1e-6, "moments": "bfloat16"}
    one = one_rank(gpu, "Qwen3-8B", 0, 1, {}, fields=SMALL, optimizer=optimizer)
    engine, device = one.engine, one.gpu
    engine.update(sequences_of(one, [100, 200]), loss)
    parts = components(one)
    writer = StepWriter(LocalControl(), tmp_path, background=True)
    for number in (1, 2):
        device.clear()
        path = writer.begin(number, parts, StepContents())
        assert device.waits == Counter({"synchronize: host_copy.take": 1})
        writer.finish()
    step = Step(path)
    reader = step.reader()
    session = local_session(device="cuda:0")
    for part, target in zip(parts, (engine.weights, engine.optimizer_tensors()), strict=True):
        stored = step.component(part.name)
        assert stored.tensors == part.shard_map.tensors
        fill(session, stored, reader, part.shard_map, target)
    # A run that keeps moments in float32 reads them as well.
    wide = {name: tensor.float() for name, tensor in engine.optimizer_tensors().items()}
    states = parts[1].shard_map
    specs = {name: TensorSpec(spec.shape, "float32") for name, spec in states.tensors.items()}
    fill(session, stored, reader, ShardMap(specs, states.regions), wide)
    engine.restore_counters({"num_steps": 1})
    engine.weights_changed()
