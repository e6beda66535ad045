"""A step on its way from the device to files, and back."""

from __future__ import annotations

from collections import Counter

from tests.dry_gpu.one_rank import SMALL, one_rank
from tests.dry_gpu.rollout_rank import sum_in_one_kernel
from tests.dry_gpu.test_training import loss, sequences_of
from verl_hpc.checkpoint.read import Step
from verl_hpc.checkpoint.step_files import Component, StepContents
from verl_hpc.checkpoint.write import StepWriter
from verl_hpc.layout.shard_map import ShardMap, TensorSpec
from verl_hpc.layout.writers import assign_writers
from verl_hpc.runtime.one_rank import LocalControl, local_session
from verl_hpc.trainer.fill import fill


def test_a_saved_step_is_read_back(gpu, tmp_path, monkeypatch):
    sum_in_one_kernel(monkeypatch)
    optimizer = {"lr": 1e-6, "moments": "bfloat16"}
    one = one_rank(gpu, "Qwen3-8B", 0, 1, {}, fields=SMALL, optimizer=optimizer)
    engine, device = one.engine, one.gpu
    engine.update(sequences_of(one, [100, 200]), loss)
    states = engine.optimizer_map(primary=True)
    parts = [
        Component("actor", engine.shard_map, engine.weights, assign_writers(engine.shard_map)[0]),
        Component("actor.optimizer", states, engine.optimizer_tensors(), states.held_by(0)),
    ]
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
    specs = {name: TensorSpec(spec.shape, "float32") for name, spec in states.tensors.items()}
    fill(session, stored, reader, ShardMap(specs, states.regions), wide)
    engine.restore_counters({"num_steps": 1})
    engine.weights_changed()
