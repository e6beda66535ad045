"""Mixtures of experts from Megatron-core to vLLM: bit for bit, at the minimum of bytes, and both
compute the same log-probs, before and after an update."""

import pytest
import torch

from tests.mpi.engines_for_tests import build_engine, held, layouts_of_world, some_sequences
from tests.mpi.mixtures import MODELS
from tests.mpi.test_reshard import computed_alike
from verl_hpc.config.rollout import RolloutConfig
from verl_hpc.layout.generation import generation_groups, zero_redundancy_applies
from verl_hpc.layout.megatron import TrainLayout
from verl_hpc.layout.planner import plan_transfer
from verl_hpc.layout.report import minimum_received
from verl_hpc.rollout.vllm import VllmEngine
from verl_hpc.transfer.execute import Transfer

LIMITS = {"max_prompt_tokens": 32, "max_response_tokens": 16, "kv_cache_gib": 0.03}
# vLLM's attention on CPUs takes heads of 32.
SIZES = {
    "num_hidden_layers": 2,
    "hidden_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
}
# What training takes; "rollout", the ranks of an engine; "whole", with whole experts on each;
# "stages", of an engine.
LAYOUTS = {
    1: [{"rollout": 1}],
    2: [
        {"tp": 2, "rollout": 1},
        {"tp": 2, "ep": 2, "rollout": 2},
        {"tp": 2, "ep": 2, "rollout": 2, "whole": True},
        {"tp": 2, "etp": 2, "rollout": 2, "whole": True},
        {"dp": 2, "ep": 2, "rollout": 1},
        {"pp": 2, "rollout": 2},
    ],
    4: [
        {"tp": 2, "dp": 2, "ep": 4, "rollout": 2},
        {"tp": 4, "ep": 4, "rollout": 2, "whole": True},
        {"tp": 2, "dp": 2, "ep": 2, "rollout": 2, "whole": True},
        {"pp": 2, "dp": 2, "ep": 2, "rollout": 4, "whole": True},
        {"dp": 4, "ep": 2, "etp": 2, "rollout": 4, "stages": 2, "whole": True},
        {"tp": 2, "dp": 2, "ep": 2, "etp": 2, "rollout": 1},
        {"tp": 4, "ep": 2, "rollout": 2},
        {"tp": 2, "pp": 2, "ep": 2, "rollout": 4},
    ],
}


def pytest_generate_tests(metafunc):
    layouts_of_world(metafunc, LAYOUTS)


@pytest.mark.world(*LAYOUTS)
@pytest.mark.parametrize("model", MODELS)
def test_weights_arrive_and_both_compute_the_same(here, tiny_model, sizes, model):
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
    files = str(directory)
    rollout = VllmEngine(here.world, trainer.arch, files, files, replicas, config, "float32")
    try:
        for parameter in rollout.weights.values():
            parameter.fill_(float("nan"))
        plan = plan_transfer(trainer.shard_map, rollout.shard_map, here.world.node_of, 1 << 16)
        transfer = Transfer(plan, rank)
        for _ in range(2):
            rollout.begin_update()
            stats = transfer.run(trainer.weights, rollout.weights, rollout.dtype)
            rollout.finish_update()
            assert stats.total_received_bytes == minimum_received(plan.bundles).get(rank, 0)
            for parameter in rollout.weights.values():
                parameter.nan_to_num_(0.0)  # padding of the vocabulary
            arrived_bit_for_bit(here, trainer, rollout)
            computed_alike(here, trainer, rollout, replicas)
            sequences = some_sequences(4, trainer.arch.vocab_size)
            trainer.update(sequences, lambda _, o: (-sum(x.log_probs.sum() for x in o) / 99, {}))
    finally:
        rollout.close()


def arrived_bit_for_bit(here, trainer, rollout) -> None:
    """Against all that trainers hold, gathered the slow way."""
    held_here = {}
    for region in trainer.shard_map.held_by(here.world.rank):
        held_here[region.tensor, region.box] = held(trainer.weights, region)
    whole = {n: torch.full(s.shape, float("nan")) for n, s in trainer.shard_map.tensors.items()}
    for part in here.control.allgather(held_here):
        for (name, box), value in part.items():
            whole[name][box.slices] = value
    for region in rollout.shard_map.held_by(here.world.rank):
        arrived = held(rollout.weights, region)
        assert torch.equal(arrived, whole[region.tensor][region.box.slices]), region
