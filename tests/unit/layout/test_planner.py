"""Plans, carried out by the oracle, over many pairs of layouts."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.layout.simulate import carry_out, elements_of, filled_memory
from verl_hpc.errors import LayoutError
from verl_hpc.layout.architecture import Architecture
from verl_hpc.layout.box import Box, View
from verl_hpc.layout.generation import generation_groups, zero_redundancy_applies
from verl_hpc.layout.grid import nodes_of
from verl_hpc.layout.megatron import TrainLayout, megatron_shard_map
from verl_hpc.layout.planner import plan_transfer
from verl_hpc.layout.report import message_census, minimum_inbound, minimum_received
from verl_hpc.layout.shard_map import Region, ShardMap, TensorSpec
from verl_hpc.layout.vllm import vllm_shard_map


def architecture(**changes) -> Architecture:
    sizes = dict(
        family="llama",
        num_layers=4,
        hidden_size=6,
        ffn_size=8,
        num_heads=8,
        num_kv_heads=4,
        head_size=2,
        vocab_size=70,
        tied_embeddings=False,
        dtype="float32",
    )
    return Architecture(**{**sizes, **changes})


def moe(family="mixtral", **changes) -> Architecture:
    return architecture(family=family, num_experts=4, experts_per_token=2, **changes)


def check(source: ShardMap, target: ShardMap, node_of, bucket_bytes=4096) -> None:
    """The plan fills the target exactly, and moves no byte that it need not."""
    plan = plan_transfer(source, target, node_of, bucket_bytes)
    memory, received = carry_out(plan, source, target)
    wanted = filled_memory(target)
    for holder, tensors in wanted.items():
        for name, values in tensors.items():
            assert (memory[holder][name] == values).all(), (holder, name)
    held = {h: elements_of(source, h) for h in source.holders}
    needed = {h: elements_of(target, h) for h in target.holders}
    for rank in needed:
        lacking = [v - held.get(rank, {}).get(t, set()) for t, v in needed[rank].items()]
        assert received[rank] == sum(map(len, lacking))
        assert plan.received_bytes.get(rank, 0) == 4 * received[rank]
    assert minimum_received(plan.bundles) == {r: b for r, b in plan.received_bytes.items() if b}
    inbound = plan.inbound_bytes(node_of)
    for node in set(node_of):
        ranks = [r for r in range(len(node_of)) if node_of[r] == node]
        lacking_bytes = 0
        for tensor in target.tensors:
            need = set().union(*(needed.get(r, {}).get(tensor, set()) for r in ranks))
            have = set().union(*(held.get(r, {}).get(tensor, set()) for r in ranks))
            lacking_bytes += 4 * len(need - have)
        assert inbound.get(node, 0) == lacking_bytes
    assert dict(inbound) == minimum_inbound(plan.bundles, node_of)
    assert max(message_census(plan), default=0) <= bucket_bytes


PAIRS = [
    (tp, pp, dp, rollout_tp)
    for tp in (1, 2, 4)
    for pp in (1, 2)
    for dp in (1, 2)
    for rollout_tp in (1, 2, 4, 8)
    if tp * pp * dp % rollout_tp == 0
]


@pytest.mark.parametrize("tp, pp, dp, rollout_tp", PAIRS)
@pytest.mark.parametrize("tied", [False, True])
def test_megatron_to_vllm_moves_exactly_what_is_missing(tp, pp, dp, rollout_tp, tied):
    layout = TrainLayout(tp=tp, pp=pp, dp=dp)
    arch = architecture(tied_embeddings=tied, qkv_bias=True, family="qwen2")
    grouping = "zero_redundancy" if zero_redundancy_applies(tp, rollout_tp) else "contiguous"
    replicas = generation_groups(layout.grid, rollout_tp, grouping).tensor_parallel_groups
    source = megatron_shard_map(arch, layout, vocab_multiple=8)
    for ranks_per_node in (2, 4, 8):
        check(source, vllm_shard_map(arch, replicas), nodes_of(layout.num_ranks, ranks_per_node))


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_any_training_layout_to_any_other(data):
    """Elastic resume's case: every pair of layouts, tied or not, with or without chunks."""

    def layout(label):
        tp = data.draw(st.sampled_from([1, 2, 4, 8]), label=f"{label} tp")
        pp = data.draw(st.sampled_from([1, 2, 4]), label=f"{label} pp")
        vpp = data.draw(st.sampled_from([1, 2]), label=f"{label} vpp") if pp == 2 else 1
        dp = data.draw(st.sampled_from([1, 2, 3]), label=f"{label} dp")
        return TrainLayout(tp=tp, pp=pp, dp=dp, vpp=vpp)

    arch = architecture(
        tied_embeddings=data.draw(st.booleans(), label="tied"),
        num_kv_heads=data.draw(st.sampled_from([2, 4, 8]), label="kv heads"),
        qk_norm=data.draw(st.booleans(), label="qk norm"),
        num_layers=data.draw(st.sampled_from([4, 6, 8]), label="layers"),
    )
    before, after = layout("from"), layout("to")
    source = megatron_shard_map(arch, before, vocab_multiple=2)
    target = megatron_shard_map(arch, after, vocab_multiple=4, backend="transformer_engine")
    num_ranks = max(before.num_ranks, after.num_ranks)
    per_node = data.draw(st.sampled_from([1, 2, 4, 8]), label="ranks per node")
    check(source, target, nodes_of(num_ranks, per_node))


@pytest.mark.parametrize("family", ["mixtral", "qwen3_moe"])
@pytest.mark.parametrize("ep, etp", [(1, 1), (2, 1), (4, 1), (2, 2), (1, 2)])
@pytest.mark.parametrize("backend", ["local", "transformer_engine"])
def test_experts_move_from_expert_parallel_to_stacked(family, ep, etp, backend):
    arch = moe(family, qk_norm=family == "qwen3_moe")
    layout = TrainLayout(tp=2, dp=2, pp=2, ep=ep, etp=etp)
    replicas = generation_groups(layout.grid, 2).tensor_parallel_groups
    source = megatron_shard_map(arch, layout, backend=backend, vocab_multiple=8)
    check(source, vllm_shard_map(arch, replicas), nodes_of(8, 4))


def test_disjoint_ranks_train_and_generate():
    arch = architecture()
    source = megatron_shard_map(arch, TrainLayout(tp=2, dp=2), vocab_multiple=8)
    target = vllm_shard_map(arch, [(4, 5), (6, 7), (8, 9), (10, 11)])
    check(source, target, nodes_of(12, 4))


def test_value_head_reaches_every_rank_of_the_last_stage():
    arch = architecture(tied_embeddings=True)
    source = megatron_shard_map(arch, TrainLayout(tp=4, dp=2), value_head=True)
    target = megatron_shard_map(arch, TrainLayout(tp=2, pp=2, dp=2), value_head=True)
    check(source, target, nodes_of(8, 8))


def test_overlapping_sources_are_used_once():
    spec = {"w": TensorSpec((6, 4), "float32")}
    whole, left = Box((0, 0), (6, 4)), Box((0, 0), (6, 2))
    source = ShardMap(
        spec,
        [
            Region("w", left, (0,), View("a", 0, (2, 1))),
            Region("w", whole, (1,), View("b", 0, (4, 1))),
        ],
    )
    target = ShardMap(spec, [Region("w", whole, (0, 1, 2), View("c", 0, (4, 1)))])
    check(source, target, (0, 0, 0))


def test_a_file_is_read_once_and_passed_on():
    arch = architecture()
    tensors = arch.tensors("float32")
    regions = [
        Region(n, Box.whole(s.shape), ("model.safetensors",), View(n, 0, _strides(s.shape)))
        for n, s in tensors.items()
    ]
    source = ShardMap(tensors, regions)
    target = megatron_shard_map(arch, TrainLayout(tp=2, dp=4), vocab_multiple=8)
    nodes = nodes_of(8, 4)
    plan = plan_transfer(source, target, nodes)
    memory, received = carry_out(plan, source, target)
    for holder, wanted in filled_memory(target).items():
        for name, values in wanted.items():
            assert (memory[holder][name] == values).all()
    read = [0] * 8
    for route in plan.reads:
        read[route.target] += route.bundle.num_bytes
    assert sum(read) == source.num_bytes
    assert min(read) > 0, "every replica shares in the reading"
    held = {r: sum(map(len, elements_of(target, r).values())) * 4 for r in range(8)}
    assert all(read[r] + 4 * received[r] == held[r] for r in range(8))
    assert sum(plan.inbound_bytes(nodes).values()) <= source.num_bytes


def _strides(shape):
    return (1,) if len(shape) == 1 else (shape[1], 1)


def test_a_missing_tensor_is_named():
    arch = architecture()
    source = megatron_shard_map(architecture(tied_embeddings=True), TrainLayout())
    with pytest.raises(LayoutError, match=r"lm_head.weight: needed by the target"):
        plan_transfer(source, vllm_shard_map(arch, [(0,)]), (0,))


def test_a_hole_in_the_source_is_named():
    spec = {"w": TensorSpec((4,), "float32")}
    source = ShardMap(spec, [Region("w", Box((0,), (3,)), (0,), View("w", 0, (1,)))])
    target = ShardMap(spec, [Region("w", Box((0,), (4,)), (0,), View("w", 0, (1,)))])
    with pytest.raises(LayoutError, match=r"w: elements .* have no source"):
        plan_transfer(source, target, (0,))


def test_shapes_that_differ_are_named():
    target = vllm_shard_map(architecture(vocab_size=72), [(0,)])
    source = megatron_shard_map(architecture(), TrainLayout())
    with pytest.raises(LayoutError, match=r"embed_tokens.weight: shape \(70, 6\)"):
        plan_transfer(source, target, (0,))


def test_senders_share_the_load():
    """Four replicas hold everything, eight others need it: each sends a quarter."""
    arch = architecture(num_layers=8)
    source = megatron_shard_map(arch, TrainLayout(dp=4), vocab_multiple=8)
    target = vllm_shard_map(arch, [(r,) for r in range(4, 12)])
    plan = plan_transfer(source, target, nodes_of(12, 1), 4096)
    sent = [0] * 12
    for hop in plan.hops:
        for route in hop:
            sent[int(route.source)] += route.bundle.num_bytes
    assert max(sent) <= 1.1 * sum(sent) / 4
