"""The ledger and the plan of a run whose rollout is in FP8."""

from dataclasses import replace

import pytest

from tests.unit.config.trees import parse
from tests.unit.layout.models import architecture
from verl_hpc.hardware.node import GIB, KINDS, Hardware
from verl_hpc.layout.megatron import TrainLayout, megatron_shard_map
from verl_hpc.layout.quantization import quantised_source
from verl_hpc.layout.rollout import rollout_shard_map
from verl_hpc.layout.shard_map import shard_sizes
from verl_hpc.placement.layouts import run_layouts
from verl_hpc.planner.memory.ledger import ledger
from verl_hpc.planner.memory.rollout import RolloutShape, generating, least_cache, rollout_weights
from verl_hpc.planner.refit_plan import refit_plans

H100 = Hardware(KINDS["H100-80"], 4, host_bytes=2000 * GIB)
ARCH = architecture(
    hidden_size=512,
    ffn_size=1024,
    num_heads=8,
    head_size=128,
    vocab_size=640,
    max_positions=4096,
    dtype="bfloat16",
)


def run(**rollout):
    changes = {"rollout": {"num_samples": 4, "tensor_parallel": 2, **rollout}}
    return parse(algorithm={"correction": {}}, parallel={"tensor_parallel": 2}, **changes)


@pytest.mark.parametrize("ignored", [[], ["layers.1", "o_proj"], ["mlp"]])
@pytest.mark.parametrize("pp", [1, 2])
def test_weights_are_those_of_the_map(ignored, pp):
    config = run(quantization="fp8", ignored_layers=ignored, pipeline_parallel=pp).rollout
    ranks = tuple(range(2 * pp))
    sizes = shard_sizes(rollout_shard_map(config, ARCH, [ranks], "bfloat16"))
    shape = RolloutShape.of(ARCH, config, "bfloat16", on_gpu=True)
    for rank in ranks:
        assert rollout_weights(shape, rank // 2) == sizes[rank]


@pytest.mark.parametrize("ignored", [[], ["layers.3", "down_proj"]])
def test_what_the_trainer_makes_is_in_the_phase_that_sends_it(ignored):
    config = run(quantization="fp8", ignored_layers=ignored)
    layouts = run_layouts(config, ARCH, 4, ranks_per_node=4)
    planned = ledger(config, ARCH, layouts, H100)
    trained = megatron_shard_map(ARCH, TrainLayout(tp=2, dp=2))
    target = rollout_shard_map(config.rollout, ARCH, layouts.replicas, "bfloat16")
    names = [n for n, s in target.tensors.items() if s.dtype != "bfloat16"]
    made = quantised_source(trained, target).restricted_to(names)
    values = sum(r.box.num_elements for r in made.held_by(0) if r.tensor.endswith(".weight"))
    scales = {r.tensor: made.tensors[r.tensor].num_bytes for r in made.held_by(0)}
    expected = values + sum(n for name, n in scales.items() if name.endswith("_scale_inv"))
    with_it = {p.name for p in planned.all_phases if "actor.quantised" in p.device}
    assert with_it == {"reshard"}
    (reshard,) = (p for p in planned.all_phases if p.name == "reshard")
    assert reshard.device["actor.quantised"] == expected


def test_a_plan_has_the_bytes_that_travel():
    """Each rank lacks the half of every linear layer that the other tensor-parallel rank has."""
    received = {}
    for kind in (None, "fp8"):
        config = run(quantization=kind, tensor_parallel=1)
        layouts = run_layouts(config, ARCH, 4, ranks_per_node=4)
        received[kind] = refit_plans(config, ARCH, layouts, H100)[0].received_bytes
    linear = 4 * (2 * 1024 * 512 + 2 * 512 * 512 + 3 * 512 * 1024) // 2
    for rank in range(4):
        saved = 2 * linear - (linear + 4 * linear // 128**2)
        assert received[None][rank] - received["fp8"][rank] == saved


def test_a_cache_in_fp8_has_half_the_bytes():
    shapes = [
        RolloutShape.of(ARCH, run(kv_cache_dtype=kind).rollout, "bfloat16", on_gpu=True)
        for kind in ("auto", "fp8")
    ]
    assert least_cache(shapes[0]) == 2 * least_cache(shapes[1])


def test_products_on_cores_are_of_what_values_stand_for():
    plain, fp8 = (
        RolloutShape.of(ARCH, run(quantization=kind).rollout, "bfloat16", on_gpu=False)
        for kind in (None, "fp8")
    )
    found = generating(fp8, 0, None)
    assert found["packed_weights"] == generating(plain, 0, None)["weights"] > found["weights"]


def test_ranks_without_the_actor_make_nothing():
    """A search asks about ranks that only generate; they make no quantised copy."""
    config = parse(
        algorithm={"correction": {}},
        placement={"actor": "0-1", "rollout": "2-3"},
        rollout={"num_samples": 4, "quantization": "fp8"},
    )
    layouts = run_layouts(config, ARCH, 4, ranks_per_node=4)
    planned = ledger(config, ARCH, layouts, H100)
    for rank, makes in ((0, True), (2, False)):
        phases = {phase.name: phase.device for phase in planned.of_rank(rank)}
        assert ("actor.quantised" in phases["reshard"]) == makes
    alone = replace(planned, settings={}, shapes={})
    assert "actor.quantised" not in {t for p in alone.of_rank(2) for t in p.device}
