"""A small whole step that two ranks write, and everything that is in it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import h5py
import numpy as np
import torch

from tests.unit.ranks import on_ranks
from verl_hpc.checkpoint.convert import DEFAULT_SHARD_BYTES, export_step
from verl_hpc.checkpoint.manifest import WrittenFile, described, read_manifest, write_manifest
from verl_hpc.checkpoint.read import Step
from verl_hpc.checkpoint.run_state import OptimizerCounters, RunState
from verl_hpc.checkpoint.step_files import Component, StepContents
from verl_hpc.checkpoint.weights import hf_files, open_weights
from verl_hpc.checkpoint.write import save_step
from verl_hpc.data.order import Position
from verl_hpc.layout.heads import Head, model_tensors
from verl_hpc.layout.shard_map import ShardMap, TensorSpec, dtype_name, whole
from verl_hpc.rollout.partial import ResponseId
from verl_hpc.rollout.protocol import Response
from verl_hpc.testing.tiny import make_tiny_model

STATE = RunState(
    step=6,
    position=Position(0, 24),
    kl_coefficient=0.1,
    optimizers={"actor": OptimizerCounters(num_steps=12)},
    fingerprint={"data": "3f"},
)

AHEAD = {
    ResponseId("rollout", 7, slot, 9): Response(
        tuple(range(slot, 30)),
        (-0.5,) * (30 - slot),
        end,
        None,
        np.arange(120, dtype=np.uint8).reshape(30, 2, 2),
        versions=(4,) * 10 + (5,) * (20 - slot),
    )
    for slot, end in ((3, "stop"), (5, "unfinished"))
}
"""What the second rank's engine has made ahead."""


def make_model(directory: Path) -> Path:
    return make_tiny_model(
        directory, "qwen2", tied=True, hidden_size=32, num_hidden_layers=1, noise=0.1
    )


def write_step(
    model: Path,
    root: Path,
    number: int = 6,
    seed: int = 0,
    heads: Mapping[str, Head] = {},
    state: RunState = STATE,
) -> Path:
    """Two ranks write the model's shapes, full of random numbers, and two moments of each.

    Args:
        heads: heads of further components, by their names.
    """
    arch = open_weights(model).arch
    shapes = {n: s.shape for n, s in arch.tensors().items()}
    state_of = {f"{kind}/{n}": s for kind in ("exp_avg", "main") for n, s in shapes.items()}

    def write(control):
        torch.manual_seed(seed)
        components = [
            _component(control, "actor", shapes, torch.bfloat16),
            _component(control, "actor.optimizer", state_of, torch.float32),
        ]
        for name, head in heads.items():
            shapes_of = {n: s.shape for n, s in model_tensors(arch, head).items()}
            components.append(_component(control, name, shapes_of, torch.bfloat16))
        random = {"torch": torch.arange(256, dtype=torch.uint8) + control.rank}
        ahead = AHEAD if control.rank == 1 else {}
        contents = StepContents(state, "name: run\n", hf_files(model), random, ahead=ahead)
        return save_step(control, root, number, components, contents)

    return on_ranks(2, write)[0]


def _component(control, name, shapes, dtype):
    kind = dtype_name(dtype)
    tensors = {n: torch.randn(s).to(dtype) for n, s in shapes.items()}
    specs = {n: TensorSpec(s, kind) for n, s in shapes.items()}
    regions = [whole(n, n, s, (i % 2,)) for i, (n, s) in enumerate(shapes.items())]
    shard_map = ShardMap(specs, regions)
    return Component(name, shard_map, tensors, shard_map.held_by(control.rank))


def contents(path: Path, out: Path) -> dict[str, object]:
    """All that resume and export take from a step, bit for bit."""
    step = Step(path)
    reader = step.reader()
    parts: dict[str, object] = {"state": step.state, "number": step.number}
    for component in ("actor", "actor.optimizer"):
        for region in step.component(component).regions:
            part = reader.read(str(region.holders[0]), region.view.name, region.box)
            parts[f"{component}/{region.tensor}/{region.box}"] = _bits(part)
    for rank in range(step.num_ranks):
        for name, array in step.rank_arrays(rank).items():
            parts[f"{rank}/{name}"] = _bits(array)
    for which, response in step.ahead(lambda _: True).items():
        parts[f"ahead/{which.slot}"] = which, response, _bits(torch.from_numpy(response.experts))
    export_step(path, out, shard_bytes=DEFAULT_SHARD_BYTES)
    for file in out.iterdir():
        parts[f"export/{file.name}"] = file.read_bytes()
    return parts


def _bits(tensor: torch.Tensor) -> tuple[object, ...]:
    raw = tensor.contiguous().view(torch.uint8).numpy().tobytes()
    return tensor.dtype, tuple(tensor.shape), raw


def spoil_chunk(path: Path, data_of: Callable[[int], bytes]) -> None:
    """Write other data of its size over the first chunk of a small tensor in a rank's file."""
    with h5py.File(path) as file:
        (part,) = file["actor/model.norm.weight"].values()
        chunk = part.id.get_chunk_info(0)
    data = bytearray(path.read_bytes())
    data[chunk.byte_offset : chunk.byte_offset + chunk.size] = data_of(chunk.size)
    path.write_bytes(data)


def reseal(step: Path) -> None:
    """Make a manifest of the files as they are now, as somebody would who forges a step."""
    old = read_manifest(step)
    now = {name: described((step / name).read_bytes()) for name in old.files}
    files = {
        name: now[name] if written.sha256 else WrittenFile(bytes=now[name].bytes)
        for name, written in old.files.items()
    }
    write_manifest(step, old.model_copy(update={"files": files}))
