"""Buckets of runs whose ranks differ: the ledger's are those that a transfer takes, on every rank.

Training and generation on other ranks, stages of rollout engines, another type, several nodes.
"""

from itertools import product

import pytest
import torch

from tests.mpi.engines_for_tests import memory
from tests.mpi.recipe_runs import configure
from tests.slow import mostly_slow
from verl_hpc.engines.factory import engine_shard_map
from verl_hpc.hardware.node import KINDS, Hardware
from verl_hpc.layout.architecture import read_architecture
from verl_hpc.layout.grid import nodes_of
from verl_hpc.layout.moves import moves_of
from verl_hpc.layout.planner import HOST_BUCKET_BYTES, HOST_ROUNDS, plan_transfer
from verl_hpc.layout.quantization import quantised_source
from verl_hpc.layout.rollout import rollout_shard_map
from verl_hpc.placement.layouts import run_layouts
from verl_hpc.planner.memory.ledger import ledger
from verl_hpc.planner.memory.transfer import bucket_bytes
from verl_hpc.transfer.execute import Transfer
from verl_hpc.transfer.process_memory import readable_neighbours

pytestmark = pytest.mark.world(4)

APART, TURNED = {"rollout": "0-1", "train": "2-3"}, {"rollout": "2-3", "train": "0-1"}
TP2, PP2 = {"tensor_parallel": 2}, {"pipeline_parallel": 2}
DOWN = {
    "quantization": "fp8",
    "ignored_layers": ["self_attn", "gate_proj", "up_proj"],
    "verify": {"on_mismatch": "correct"},
}
# (placement, parallel, rollout)
CASES = {
    "apart": (APART, TP2, {"tensor_parallel": 1}),
    "apart-rollout-tp2": (APART, PP2, TP2),
    "apart-rollout-pp2": (APART, TP2, PP2),
    "apart-bfloat16": (TURNED, TP2, {**PP2, "dtype": "bfloat16"}),
    "apart-fp8": (TURNED, TP2, {**PP2, **DOWN}),
    "stages": ({}, {"tensor_parallel": 4}, {**TP2, **PP2}),
    "rollout-tp4": ({}, {"pipeline_parallel": 4}, {"tensor_parallel": 4}),
    "hf": ({}, {**TP2, **PP2}, {"engine": "hf"}),
    "virtual-stages": ({}, {**PP2, "virtual_pipeline": 2}, {**TP2, "grouping": "contiguous"}),
}


@pytest.mark.parametrize(
    ("case", "ranks_per_node"), mostly_slow(product(CASES, [1, 2, 4]), every=2)
)
def test_counted_buckets_are_those_of_a_transfer(here, tiny_model, case, ranks_per_node):
    placement, parallel, rollout = CASES[case]
    directory = tiny_model(
        "qwen3", True, num_hidden_layers=4, num_key_value_heads=4, num_attention_heads=4
    )
    arch, rank = read_architecture(directory), here.world.rank
    limits = {"max_prompt_tokens": 32, "max_response_tokens": 16, "num_samples": 2}
    run = configure(
        "buckets",
        "none",
        directory,
        recipe="rl",
        parallel=parallel,
        rollout=limits | rollout,
        placement=placement,
    )
    layouts = run_layouts(run, arch, 4, ranks_per_node=ranks_per_node)
    role, nodes = run.role_settings["actor"], nodes_of(4, ranks_per_node)
    source = engine_shard_map(arch, layouts.train["actor"], role.model, role.head)
    target = rollout_shard_map(run.rollout, arch, layouts.replicas, run.rollout_dtype)
    source = quantised_source(source, target)
    same = run.rollout_dtype == "float32"
    near = readable_neighbours(here.control, nodes) if same else {}
    dtypes = {name: getattr(torch, spec.dtype) for name, spec in target.tensors.items()}
    for bucket, rounds, neighbours in (
        (4096, 2, {}),
        (4096, 2, near),
        (HOST_BUCKET_BYTES, HOST_ROUNDS, near),
    ):
        plan = plan_transfer(source, target, nodes, bucket)
        transfer = Transfer(plan, rank, rounds=rounds, neighbours=neighbours)
        stats = transfer.run(memory(source, rank), memory(target, rank), dtypes)
        planned = bucket_bytes(moves_of(plan, rank), rounds, same, neighbours)
        assert planned == stats.peak_buffer_bytes
    told = ledger(run, arch, layouts, Hardware(KINDS["cpu"], ranks_per_node), counts_buckets=True)
    for phase in told.of_rank(rank):
        if phase.name not in ("build", "load"):
            assert phase.device.get("buckets", 0) == stats.peak_buffer_bytes, phase.name
