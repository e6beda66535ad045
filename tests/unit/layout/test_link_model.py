"""Predicted seconds, against sums that a reader can do."""

import pytest

from tests.unit.layout.models import PUBLISHED, moe
from verl_hpc.layout import link_model
from verl_hpc.layout.architecture import architecture_from
from verl_hpc.layout.fragments import fragments
from verl_hpc.layout.link_model import Links, _lies_in_one_piece, limit_seconds, predicted_seconds
from verl_hpc.layout.megatron import TrainLayout, megatron_shard_map
from verl_hpc.layout.planner import plan_transfer
from verl_hpc.layout.report import reshard_report
from verl_hpc.layout.shard_map import ShardMap, TensorSpec, whole
from verl_hpc.layout.vllm import vllm_shard_map

SLOW_MEMORY = Links(nvlink_gb_s=4.0, network_gb_s=1.0, memory_gb_s=10.0, message_us=1e3)
MIB = 2**20


def held_by(ranks, num_tensors=1):
    """Matrices of 4 MiB, each held whole by every one of some ranks."""
    names = [f"t{i}" for i in range(num_tensors)]
    tensors = {name: TensorSpec((1024, 1024), "float32") for name in names}
    return ShardMap(tensors, [whole(name, name, (1024, 1024), ranks) for name in names])


def plan_of(source, target, node_of, num_tensors=1):
    """With messages of one whole tensor."""
    have, want = held_by(source, num_tensors), held_by(target, num_tensors)
    return plan_transfer(have, want, node_of, 4 * MIB)


@pytest.mark.parametrize("node_of, speed", [((0, 0), 4e9), ((0, 1), 1e9)])
def test_one_message_is_summed_sent_and_summed(node_of, speed):
    plan = plan_of((0,), (1,), node_of)
    wire = 1e-3 + 4 * MIB / speed
    summing = 4 * MIB / 10e9
    assert predicted_seconds(plan, node_of, SLOW_MEMORY) == pytest.approx(wire + 2 * summing)
    assert predicted_seconds(plan, node_of, SLOW_MEMORY, False) == pytest.approx(wire)
    assert limit_seconds(plan, node_of, SLOW_MEMORY) == pytest.approx(4 * MIB / speed)


def test_sums_and_wire_work_side_by_side():
    """The wire is slower: only the sums of the first and the last message are waited for."""
    plan = plan_of((0,), (1,), (0, 1), 10)
    wire, summing = 1e-3 + 4 * MIB / 1e9, 4 * MIB / 10e9
    assert predicted_seconds(plan, (0, 1), SLOW_MEMORY) == pytest.approx(10 * wire + 2 * summing)


def test_both_ways_at_once_and_one_after_another_each_way():
    have = held_by((0,), 2), held_by((1,), 2)
    source = ShardMap(have[0].tensors, [have[0].regions[0], have[1].regions[1]])
    both = plan_transfer(source, held_by((0, 1), 2), (0, 1), 4 * MIB)
    wire = 1e-3 + 4 * MIB / 1e9
    copying = 2 * 4 * MIB / 10e9
    found = predicted_seconds(both, (0, 1), SLOW_MEMORY, False)
    assert found == pytest.approx(copying + wire), "each copies its own, then they swap"
    to_two = plan_of((0,), (1, 2), (0, 1, 2))
    assert predicted_seconds(to_two, (0, 1, 2), SLOW_MEMORY, False) == pytest.approx(2 * wire)


def test_what_passes_through_buckets_is_copied_twice():
    """Columns of a matrix, from one that holds it whole; where they arrive they lie together."""
    source, target = held_by((0,)), held_by((1,))
    region = target.regions[0]
    box = type(region.box)((0, 0), (1024, 256))
    view = type(region.view)("t0", 0, (256, 1))
    columns = ShardMap(target.tensors, [type(region)("t0", box, (1,), view)])
    plan = plan_transfer(source, columns, (0, 1), 4 * MIB)
    wire, packing = 1e-3 + MIB / 1e9, 2 * MIB / 10e9
    assert predicted_seconds(plan, (0, 1), SLOW_MEMORY, False) == pytest.approx(wire + packing)


def test_what_is_passed_on_is_not_summed_again():
    plan = plan_of((0,), (1, 2), (0, 1, 1))
    wire, nvlink, summing = 1e-3 + 4 * MIB / 1e9, 1e-3 + 4 * MIB / 4e9, 4 * MIB / 10e9
    found = predicted_seconds(plan, (0, 1, 1), SLOW_MEMORY)
    assert found == pytest.approx(wire + nvlink + 3 * summing)


GOALS = {(8, 8, 2): 0.5, (8, 4, 4): 0.45, (4, 8, 4): 0.8}


@pytest.mark.parametrize("sizes", GOALS, ids=str)
def test_llama_70b_on_128_gpus_to_tp8(sizes, monkeypatch):
    """With checksums, over 45 GB/s a GPU; near the limit, also where several rounds are one."""
    tp, pp, dp = sizes
    arch = architecture_from(PUBLISHED["Llama-3.1-70B"][0])
    report = reshard_report(arch, TrainLayout(tp=tp, pp=pp, dp=dp), 8, 8)
    assert report.received_bytes_per_rank == report.minimum_bytes_per_rank
    assert report.inbound_bytes_per_node == report.minimum_inbound_bytes_per_node
    assert report.limit_seconds < report.predicted_seconds < GOALS[sizes]
    monkeypatch.setattr(link_model, "_MOST_STEPS", 10_000)
    coarse = reshard_report(arch, TrainLayout(tp=tp, pp=pp, dp=dp), 8, 8)
    assert coarse.predicted_seconds == pytest.approx(report.predicted_seconds, rel=0.05)


def test_ranks_have_few_peers():
    """Norms go where more goes: a rank of 8 stages receives from 7 others, one of each."""
    arch = architecture_from(PUBLISHED["Llama-3.1-70B"][0])
    layout = TrainLayout(tp=8, pp=8, dp=2)
    groups = [tuple(range(first, first + 8)) for first in range(0, 128, 8)]
    nodes = [rank // 8 for rank in range(128)]
    plan = plan_transfer(megatron_shard_map(arch, layout), vllm_shard_map(arch, groups), nodes)
    senders = {}
    for route in plan.hops[0]:
        senders.setdefault(route.target, set()).add(route.source)
    assert {len(found) for found in senders.values()} == {7}


def test_experts_that_a_checkpoint_has_transposed_are_neither_packed_nor_unpacked():
    """Both engines have them as linear layers do."""
    source = megatron_shard_map(moe("gpt_oss"), TrainLayout(tp=2, ep=2))
    target = vllm_shard_map(moe("gpt_oss"), [(0,), (1,)])
    moved = [f for f in fragments(source, target, 1 << 20) if ".experts." in f.tensor]
    assert {f.order for f in moved if not f.tensor.endswith("bias")} == {(0, 2, 1)}
    packed = [f for f in moved for p in (f.source, f.target) if not _lies_in_one_piece(p, f)]
    assert moved and packed == []
