"""Several layouts in one process: each engine computes what one rank alone computes.

Loss, gradient norm and every weight after two steps, within 1e-5 in float32, engines taking turns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
import torch

from tests.mpi.engines_for_tests import held, some_sequences, window
from tests.slow import all_slow
from verl_hpc.config.model import ModelConfig, OptimizerConfig, ParallelConfig
from verl_hpc.engines.factory import build_engine, engine_shard_map, start_layouts
from verl_hpc.engines.protocol import Head, TrainingEngine
from verl_hpc.layout.architecture import Architecture, read_architecture
from verl_hpc.layout.megatron import TrainLayout

pytestmark = pytest.mark.world(4)

TOLERANCE = 1e-5
STEPS = 2
MODEL = ModelConfig(path="none", dtype="float32")
SEQUENCE_PARALLEL = {"sequence_parallel": True}
FULL = {"recompute": "full"}
SELECTIVE = {"recompute": "selective"}


@dataclass
class Model:
    """What an engine of a case is built with."""

    layout: TrainLayout
    head: Head = "language_model"
    settings: dict[str, object] = field(default_factory=dict)


def on(head: Head = "language_model", first_rank: int = 0, settings=None, **sizes: int) -> Model:
    return Model(TrainLayout(first_rank=first_rank, **sizes), head, settings or {})


def logical_weights(specs) -> dict[str, torch.Tensor]:
    """Weights that do not depend on the layout; norms are about 1."""
    generator = torch.Generator().manual_seed(7)
    noise = {n: 0.1 * torch.randn(specs[n].shape, generator=generator) for n in sorted(specs)}
    return {n: 1 + tensor if "norm" in n else tensor for n, tensor in noise.items()}


def build(model: Model, arch: Architecture, rank: int) -> TrainingEngine:
    engine = build_engine(
        arch,
        model.layout,
        MODEL,
        ParallelConfig.model_construct(**model.settings),
        head=model.head,
        # A large epsilon: else Adam's first steps are signs, which rounding may turn over.
        optimizer=OptimizerConfig(lr=1e-3, epsilon=1e-3, clip_grad=0.0, weight_decay=0.1),
        max_tokens=64,
        name="model",
    )
    weights = logical_weights(engine.shard_map.tensors)
    for region in engine.shard_map.held_by(rank):
        window(engine.weights, region).copy_(weights[region.tensor][region.box.slices])
    engine.weights_changed()
    return engine


def step(engine: TrainingEngine, rank: int) -> tuple[float, float]:
    """Loss and gradient norm of an update on this rank's share of eight sequences."""
    sequences = some_sequences(8, engine.arch.vocab_size)
    total = sum(len(s) - 1 for s in sequences)
    mine = sequences[engine.layout.grid.coordinates(rank)["dp"] :: engine.layout.dp]

    def loss(indices: Sequence[int], outputs):
        if engine.head == "language_model":
            return -sum(o.log_probs.sum() for o in outputs) / total, {}
        scores = engine.head == "score"
        name, part = ("scores", slice(1)) if scores else ("values", slice(1, None))
        wanted = [torch.sin(mine[i][part].float()) for i in indices]
        pairs = zip((getattr(o, name) for o in outputs), wanted, strict=True)
        return sum(((output - w) ** 2).sum() for output, w in pairs) / total, {}

    metrics = engine.update(mine, loss)
    return metrics["loss"], metrics["grad_norm"]


def run(models: Sequence[Model], arch: Architecture, rank: int):
    """Engines of this rank among `models`, taking turns, and what each found at its steps."""
    engines = [build(m, arch, rank) for m in models if rank in m.layout.grid.ranks()]
    found: list[list[tuple[float, float]]] = [[] for _ in engines]
    for _ in range(STEPS):
        for engine, results in zip(engines, found, strict=True):
            results.append(step(engine, rank))
    return engines, found


def check(engines: Sequence[TrainingEngine], found, rank: int) -> None:
    """Compare with an engine on this rank alone."""
    for engine, results in zip(engines, found, strict=True):
        lone = Model(TrainLayout(first_rank=rank), engine.head)
        (alone,), (expected,) = run([lone], engine.arch, rank)
        for pair in zip(results, expected, strict=True):
            torch.testing.assert_close(*pair, rtol=TOLERANCE, atol=TOLERANCE)
        whole = {n: torch.zeros(s.shape) for n, s in alone.shard_map.tensors.items()}
        for region in alone.shard_map.held_by(rank):
            whole[region.tensor][region.box.slices] = window(alone.weights, region)
        for region in engine.shard_map.held_by(rank):
            wanted = whole[region.tensor][region.box.slices]
            torch.testing.assert_close(held(engine.weights, region), wanted, rtol=0, atol=TOLERANCE)


def start(here, models: Sequence[Model]) -> None:
    """All layouts of a case, and those of the ranks alone."""
    alone = [TrainLayout(first_rank=rank) for rank in range(here.world.size)]
    start_layouts(here.groups, [*(m.layout for m in models), *alone], seed=1)


SAME_RANKS = {
    "critic with more tensor parallelism": [on(tp=2, dp=2), on("value", tp=4)],
    "fewer key-value heads than one of them has ranks": [on(tp=2, dp=2), on("value", tp=4)],
    "pipelines": [on("score", tp=4), on(tp=2, pp=2), on("value", pp=4)],
    "interleaved, sequence parallel, recomputing": [
        on(tp=2, pp=2, vpp=2, settings=SEQUENCE_PARALLEL | FULL),
        on("value", tp=4, settings=SEQUENCE_PARALLEL | SELECTIVE),
        on(tp=2, pp=2),
    ],
}


CASES = list(SAME_RANKS)
TIED = [name for name in CASES if name.startswith(("critic", "interleaved"))]


@pytest.mark.parametrize("name", [*CASES[1::2], *all_slow(*CASES[::2])])
def test_layouts_over_the_same_ranks(here, tiny_model, name):
    models = SAME_RANKS[name]
    start(here, models)
    sizes = {"num_key_value_heads": 2} if name.startswith("fewer") else {}
    arch = read_architecture(tiny_model("llama", name in TIED, **{"num_hidden_layers": 4} | sizes))
    engines, found = run(models, arch, here.world.rank)
    assert len(engines) == len(models)
    check(engines, found, here.world.rank)


@pytest.mark.parametrize("first", [0, 1])
def test_a_pool_works_while_the_other_does_nothing(here, tiny_model, first):
    """The idle ranks wait outside torch, so anything collective over the world would not end."""
    models = [on(tp=2, settings=SEQUENCE_PARALLEL), on("value", pp=2, first_rank=2)]
    start(here, models)
    arch = read_architecture(tiny_model("llama", True, num_hidden_layers=4))
    engines, found = [], []
    for model in (models[first], models[1 - first]):
        if here.world.rank in model.layout.grid.ranks():
            engines, found = run([model], arch, here.world.rank)
        here.control.barrier()
    check(engines, found, here.world.rank)


def test_pools_that_overlap_in_part(here, tiny_model):
    models = [
        on(dp=3),
        on("value", pp=2, first_rank=2),
        on("score", tp=2, first_rank=1, settings=SEQUENCE_PARALLEL),
    ]
    start(here, models)
    arch = read_architecture(tiny_model(num_hidden_layers=4))
    engines, found = run(models, arch, here.world.rank)
    assert len(engines) == [1, 2, 3, 1][here.world.rank]
    check(engines, found, here.world.rank)


def test_an_engine_has_the_shard_map_that_every_rank_knows(here, tiny_model):
    model, arch = (
        on("score", tp=2, first_rank=1),
        read_architecture(tiny_model(num_hidden_layers=4)),
    )
    start_layouts(here.groups, [model.layout], seed=1)  # ranks 0 and 3 are in none
    known = engine_shard_map(arch, model.layout, MODEL, "score")
    assert known.tensors["score.weight"].shape == (1, arch.hidden_size)
    if here.world.rank in model.layout.grid.ranks():
        assert build(model, arch, here.world.rank).shard_map == known
