"""Every layout of a mixture of experts is resharded to every rollout at the minimum of bytes."""

from itertools import product

import pytest

from tests.unit.layout.models import moe
from verl_hpc.layout.generation import generation_groups
from verl_hpc.layout.megatron import TrainLayout, megatron_shard_map
from verl_hpc.layout.planner import plan_transfer
from verl_hpc.layout.report import minimum_received
from verl_hpc.layout.vllm import vllm_shard_map

SIZES = [
    {"tp": tp, "pp": pp, "dp": dp, "ep": ep, "etp": etp}
    for tp, pp, dp, ep, etp in product((1, 2, 4), (1, 2), (1, 2, 4), (1, 2, 4), (1, 2))
    if tp * pp * dp <= 8 and tp * dp % (ep * etp) == 0
]
ENGINES = [(1, False), (2, False), (2, True), (4, True)]


@pytest.mark.parametrize("family", ["qwen3_moe", "mixtral"])
def test_minimum_of_bytes(family):
    for sizes in SIZES:
        receives_what_it_lacks(TrainLayout(**sizes), moe(family, num_layers=2, vocab_size=64))


def receives_what_it_lacks(layout, arch):
    source = megatron_shard_map(arch, layout)
    compared = 0
    for (tp, whole), grouping in product(ENGINES, ("contiguous", "zero_redundancy")):
        if layout.num_ranks % tp or (grouping == "zero_redundancy" and layout.tp % tp):
            continue
        groups = generation_groups(layout.grid, tp, grouping)
        target = vllm_shard_map(arch, groups, expert_parallel=whole)
        plan = plan_transfer(source, target, [0] * layout.num_ranks, 1 << 16)
        least = minimum_received(plan.bundles)
        for rank in range(layout.num_ranks):
            assert plan.received_bytes.get(rank, 0) == least.get(rank, 0), (layout, groups, rank)
        compared += 1
    assert compared, layout
