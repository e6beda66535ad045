"""Mixtures of experts from Megatron-core to vLLM: bit for bit, at the minimum of bytes, and both
compute the same log-probs, before and after an update. With --slow, bits and bytes for every layout
of `mixtures.grid` on 2 to 8 ranks, into the memory that vLLM's map describes.
"""

from contextlib import closing

import pytest
import torch

from tests.mpi.conftest import VLLM_HEADS
from tests.mpi.engines_for_tests import (
    build_engine,
    gathered,
    held,
    layouts,
    layouts_of_world,
    memory,
    refit,
    rollout_of,
    some_sequences,
)
from tests.mpi.mixtures import MODELS, engine_on, every_layout_of_world, mixture
from tests.mpi.parity import summed
from tests.mpi.test_reshard import computed_alike
from verl_hpc.config.rollout import RolloutConfig
from verl_hpc.layout.generation import generation_groups, zero_redundancy_applies
from verl_hpc.layout.megatron import TrainLayout
from verl_hpc.layout.planner import plan_transfer
from verl_hpc.layout.report import minimum_received
from verl_hpc.layout.vllm import vllm_shard_map
from verl_hpc.transfer.execute import Transfer

LIMITS = {"max_prompt_tokens": 32, "max_response_tokens": 16, "kv_cache_gib": 0.03}
SIZES = VLLM_HEADS | {"num_hidden_layers": 2, "num_key_value_heads": 4}
# What training takes; "rollout", the ranks of an engine; "whole", with whole experts on each;
# "stages", of an engine.
# Four ranks: every size of every axis; experts in part and whole, over one stage and two.
LAYOUTS = {
    1: layouts("rollout1"),
    2: layouts(
        "tp2-rollout1 tp2-ep2-rollout2 tp2-ep2-rollout2-whole tp2-etp2-rollout2-whole "
        "dp2-ep2-rollout1 pp2-rollout2"
    ),
    4: layouts(
        "tp2-dp2-ep4-rollout2 dp4-ep2-etp2-rollout4-stages2-whole tp2-pp2-ep2-rollout4 "
        "tp4-ep4-rollout2-whole"
    ),
}
FURTHER = {
    4: layouts(
        "tp2-dp2-ep2-rollout2-whole pp2-dp2-ep2-rollout4-whole tp2-dp2-ep2-etp2-rollout1 "
        "tp4-ep2-rollout2"
    )
}
"""Their training layouts and engines are combined otherwise above."""


def pytest_generate_tests(metafunc):
    layouts_of_world(metafunc, LAYOUTS, FURTHER, model=list(MODELS))
    every_layout_of_world(metafunc)


@pytest.mark.world(*LAYOUTS)
def test_weights_arrive_and_both_compute_the_same(here, tiny_model, reference, sizes, model):
    sizes = dict(sizes)
    size, stages = sizes.pop("rollout"), sizes.pop("stages", 1)
    rollout_tp = size // stages
    config = RolloutConfig(
        tensor_parallel=rollout_tp,
        pipeline_parallel=stages,
        expert_parallel=sizes.pop("whole", False),
        **LIMITS,
    )
    layout, rank = TrainLayout(**sizes), here.world.rank
    family, fields = MODELS[model]
    directory = tiny_model(family, **SIZES, **fields)
    trainer = build_engine(here, directory, layout, sequence_parallel=layout.tp > 1, lr=1e-2)
    applies = zero_redundancy_applies(layout.tp, rollout_tp) and stages == 1
    grouping = "zero_redundancy" if applies else "contiguous"
    replicas = generation_groups(layout.grid, rollout_tp, grouping, stages)
    with closing(rollout_of(here, directory, replicas, config)) as rollout:
        for parameter in rollout.weights.values():
            parameter.fill_(float("nan"))
        plan = plan_transfer(trainer.shard_map, rollout.shard_map, here.world.node_of, 1 << 16)
        transfer = Transfer(plan, rank)
        for expected in (reference(directory), None):  # it has the weights before the update
            stats = refit(rollout, transfer, trainer.weights)
            assert stats.total_received_bytes == minimum_received(plan.bundles).get(rank, 0)
            for parameter in rollout.weights.values():
                parameter.nan_to_num_(0.0)  # padding of the vocabulary
            arrived_bit_for_bit(here, trainer, rollout.shard_map, rollout.weights)
            computed_alike(here, trainer, rollout, replicas, expected)
            sequences = some_sequences(4, trainer.arch.vocab_size)
            trainer.update(sequences, summed(99))


@pytest.mark.slow(reason="the full grid; run with --slow")
@pytest.mark.world(2, 4, 8)
@pytest.mark.parametrize("model", MODELS)
def test_every_layout_arrives(here, tiny_model, every, model):
    directory, _ = mixture(tiny_model, model)
    trainer = engine_on(here, directory, every)
    for replicas, whole_experts in rollouts(here.world.size):
        target = vllm_shard_map(trainer.arch, replicas, "float32", whole_experts)
        plan = plan_transfer(trainer.shard_map, target, here.world.node_of, 1 << 16)
        arrived = memory(target, here.world.rank)
        stats = Transfer(plan, here.world.rank).run(trainer.weights, arrived, torch.float32)
        least = minimum_received(plan.bundles).get(here.world.rank, 0)
        assert stats.total_received_bytes == least, replicas
        arrived_bit_for_bit(here, trainer, target, arrived)


def rollouts(num_ranks: int):
    """Engines of one rank; of two, next to each other and half the world apart, with experts in
    part on both ranks and whole on one."""
    half = num_ranks // 2
    neighbours = [(rank, rank + 1) for rank in range(0, num_ranks, 2)]
    interleaved = [(rank, rank + half) for rank in range(half)]
    yield [(rank,) for rank in range(num_ranks)], False
    for pairs in (neighbours, interleaved):
        yield pairs, False
        yield pairs, True


def arrived_bit_for_bit(here, trainer, target, weights) -> None:
    """Against all that trainers hold, gathered the slow way."""
    whole = gathered(here, trainer.shard_map, trainer.weights)
    for region in target.held_by(here.world.rank):
        arrived = held(weights, region)
        assert torch.equal(arrived, whole[region.tensor][region.box.slices]), region
