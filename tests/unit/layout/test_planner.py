"""Plans, carried out by the oracle, over many pairs of layouts."""

import hashlib
import os
import subprocess
import sys
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.layout.models import LATENT, architecture, deepseek, moe
from tests.unit.layout.partitions import pairs, relabelled
from tests.unit.layout.simulate import carry_out, elements_of, filled_memory
from verl_hpc.errors import LayoutError
from verl_hpc.layout.box import Box, View
from verl_hpc.layout.generation import generation_groups, zero_redundancy_applies
from verl_hpc.layout.grid import nodes_of
from verl_hpc.layout.megatron import TrainLayout, megatron_shard_map
from verl_hpc.layout.planner import plan_transfer
from verl_hpc.layout.report import message_census, minimum_inbound, minimum_received
from verl_hpc.layout.shard_map import Region, ShardMap, TensorSpec, whole
from verl_hpc.layout.vllm import vllm_shard_map


def arrives(plan, source: ShardMap, target: ShardMap) -> dict[int, int]:
    """Carry out a plan, which fills the target; elements received per rank."""
    memory, received = carry_out(plan, source, target)
    for holder, tensors in filled_memory(target).items():
        for name, values in tensors.items():
            assert (memory[holder][name] == values).all(), (holder, name)
    return received


def line(*spans, name="w", size=6):
    """A map of one vector of which each rank holds a span: (rank, start, stop)."""
    regions = [Region(name, Box((a,), (b,)), (r,), View(name, 0, (1,))) for r, a, b in spans]
    return ShardMap({name: TensorSpec((size,), "float32")}, regions)


def check(source: ShardMap, target: ShardMap, node_of, bucket_bytes=4096) -> None:
    """The plan fills the target exactly, and moves no byte that it need not."""
    plan = plan_transfer(source, target, node_of, bucket_bytes)
    received = arrives(plan, source, target)
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


@pytest.mark.parametrize("tied", [False, True])
def test_megatron_to_vllm_moves_exactly_what_is_missing(tied):
    """Nodes have 2, 4 and 8 ranks in turn."""
    arch = architecture(tied_embeddings=tied, family="qwen2")
    for number, (tp, pp, dp, rollout_tp) in enumerate(PAIRS):
        layout = TrainLayout(tp=tp, pp=pp, dp=dp)
        grouping = "zero_redundancy" if zero_redundancy_applies(tp, rollout_tp) else "contiguous"
        replicas = generation_groups(layout.grid, rollout_tp, grouping)
        source = megatron_shard_map(arch, layout, vocab_multiple=8)
        nodes = nodes_of(layout.num_ranks, (2, 4, 8)[(number + tied) % 3])
        check(source, vllm_shard_map(arch, replicas), nodes)


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
        family=data.draw(st.sampled_from(["llama", "qwen2", "qwen3"]), label="family"),
        num_layers=data.draw(st.sampled_from([4, 6, 8]), label="layers"),
    )
    before, after = layout("from"), layout("to")
    source = megatron_shard_map(arch, before, vocab_multiple=2)
    target = megatron_shard_map(arch, after, vocab_multiple=4, backend="transformer_engine")
    num_ranks = max(before.num_ranks, after.num_ranks)
    per_node = data.draw(st.sampled_from([1, 2, 4, 8]), label="ranks per node")
    check(source, target, nodes_of(num_ranks, per_node))


MIXTURES = [moe("mixtral"), moe("qwen3_moe"), deepseek()]


@pytest.mark.parametrize("mixture", MIXTURES, ids=lambda arch: arch.family)
@pytest.mark.parametrize("ep, etp", [(1, 1), (2, 1), (4, 1), (2, 2), (1, 2)])
@pytest.mark.parametrize("backend", ["local", "transformer_engine"])
def test_experts_move_from_expert_parallel_to_stacked(mixture, ep, etp, backend):
    arch = replace(mixture, num_layers=2)
    layout = TrainLayout(tp=2, dp=2, pp=2, ep=ep, etp=etp)
    source = megatron_shard_map(arch, layout, backend=backend, vocab_multiple=8)
    for rollout_tp, are_whole in ((1, False), (2, False), (2, True), (4, True)):
        grouping = "zero_redundancy" if rollout_tp <= layout.tp else "contiguous"
        replicas = generation_groups(layout.grid, rollout_tp, grouping)
        target = vllm_shard_map(arch, replicas, expert_parallel=are_whole)
        check(source, target, nodes_of(8, 4))


@settings(max_examples=8)
@given(st.data())
def test_latent_attention_moves_between_any_layouts(data):
    """Stages of unequal numbers of layers, dense ones among them, into Transformer Engine's layers
    and into vLLM."""

    layouts = st.sampled_from(
        [
            TrainLayout(tp=1, pp=2, vpp=2, dp=2, ep=2),
            TrainLayout(tp=2, pp=4, ep=2),
            TrainLayout(tp=4, dp=2, ep=4, etp=2),
            TrainLayout(tp=2, pp=2, dp=2, etp=2),
            TrainLayout(dp=4, ep=4),
        ]
    )
    q_rank = data.draw(st.sampled_from([None, 8]), label="q_rank")
    arch = deepseek(
        num_layers=data.draw(st.integers(6, 7), label="layers"),
        num_dense_layers=data.draw(st.integers(0, 3), label="dense"),
        vocab_size=20,
        latent=replace(LATENT, q_rank=q_rank),
    )
    before, after = data.draw(layouts, label="from"), data.draw(layouts, label="to")
    source = megatron_shard_map(arch, before, vocab_multiple=2)
    num_ranks = max(before.num_ranks, after.num_ranks)
    if data.draw(st.booleans(), label="to vLLM"):
        tp = data.draw(st.sampled_from([1, 2, 4]), label="rollout tp")
        replicas = [tuple(range(first, first + tp)) for first in range(0, 4, tp)]
        target = vllm_shard_map(arch, replicas, None, data.draw(st.booleans(), label="whole"))
    else:
        target = megatron_shard_map(arch, after, vocab_multiple=4, backend="transformer_engine")
    check(source, target, nodes_of(num_ranks, 4))


def test_overlapping_sources_are_used_once():
    source = line((0, 0, 3), (1, 0, 6))
    target = ShardMap(source.tensors, [whole("w", "w", (6,), (0, 1, 2))])
    check(source, target, (0, 0, 0))


def test_a_file_is_read_once_and_passed_on():
    arch = architecture()
    tensors = arch.tensors("float32")
    file = ("model.safetensors",)
    source = ShardMap(tensors, [whole(n, n, s.shape, file) for n, s in tensors.items()])
    target = megatron_shard_map(arch, TrainLayout(tp=2, dp=4), vocab_multiple=8)
    nodes = nodes_of(8, 4)
    plan = plan_transfer(source, target, nodes)
    received = arrives(plan, source, target)
    read = [0] * 8
    for route in plan.reads:
        read[route.target] += route.bundle.num_bytes
    assert sum(read) == source.num_bytes
    assert min(read) > 0, "every replica shares in the reading"
    held = {r: sum(map(len, elements_of(target, r).values())) * 4 for r in range(8)}
    assert all(read[r] + 4 * received[r] == held[r] for r in range(8))
    assert sum(plan.inbound_bytes(nodes).values()) <= source.num_bytes


TRAINED = megatron_shard_map(architecture(), TrainLayout())
TIED = megatron_shard_map(architecture(tied_embeddings=True), TrainLayout())
ENGINE = vllm_shard_map(architecture(), [(0,)])
WIDER = vllm_shard_map(architecture(vocab_size=72), [(0,)])


@pytest.mark.parametrize(
    "source, target, bucket_bytes, message",
    [
        (TIED, ENGINE, 4096, "lm_head.weight: needed by the target"),
        (line((0, 0, 5)), line((0, 0, 6)), 4096, "w: elements .* have no source"),
        (TRAINED, WIDER, 4096, r"embed_tokens.weight: shape \(70, 6\)"),
        (TRAINED, ENGINE, 4095, r"bucket_bytes = 4095: at least 4096"),
    ],
    ids=["missing tensor", "hole", "other shape", "small bucket"],
)
def test_what_cannot_be_planned_is_named(source, target, bucket_bytes, message):
    with pytest.raises(LayoutError, match=message):
        plan_transfer(source, target, (0,), bucket_bytes)


def test_senders_share_the_load():
    """Four replicas hold everything, eight others need it: each sends a quarter."""
    arch = architecture(num_layers=8)
    source = megatron_shard_map(arch, TrainLayout(dp=4), vocab_multiple=8)
    target = vllm_shard_map(arch, [(r,) for r in range(4, 12)])
    plan = plan_transfer(source, target, nodes_of(12, 1), 4096)
    sent = Counter()
    for route in (route for hop in plan.hops for route in hop):
        sent[route.source] += route.bundle.num_bytes
    assert max(sent.values()) <= 1.1 * sent.total() / 4


def test_ranks_of_a_node_share_in_bringing_bytes_in():
    """Four ranks of the second node need everything: each brings in a quarter and passes it on."""
    arch = architecture(num_layers=8)
    source = megatron_shard_map(arch, TrainLayout(), vocab_multiple=8)
    target = vllm_shard_map(arch, [(r,) for r in range(4, 8)])
    entering, passed_on = plan_transfer(source, target, nodes_of(8, 4), 4096).hops
    brought = Counter()
    for route in entering:
        brought[route.target] += route.bundle.num_bytes
    assert brought.total() == source.num_bytes
    assert max(brought.values()) <= 1.1 * brought.total() / 4
    assert sum(r.bundle.num_bytes for r in passed_on) == 3 * source.num_bytes


def test_norms_open_no_peers_outside_a_node_and_few_inside():
    """Two nodes of eight ranks train as TP8 x PP2, and each generates as TP8: every rank lacks its
    shard of the other stage's layers, and all eight lack the norms of that stage."""
    arch = architecture(hidden_size=64, ffn_size=4096, head_size=8, num_kv_heads=8, num_layers=8)
    source = megatron_shard_map(arch, TrainLayout(tp=8, pp=2), vocab_multiple=64)
    target = vllm_shard_map(arch, [tuple(range(8)), tuple(range(8, 16))])
    entering, passed_on = plan_transfer(source, target, nodes_of(16, 8)).hops
    norms = {n for n, spec in arch.tensors("float32").items() if len(spec.shape) == 1}

    def pairs(routes, of_norms):
        return {
            (int(r.source), r.target)
            for r in routes
            if {f.tensor in norms for f in r.bundle.fragments} == {of_norms}
        }

    assert norms and pairs(entering, True)
    assert pairs(entering, True) <= pairs(entering, False)
    assert not pairs(passed_on, False)
    # In each node one rank passes norms on to the seven others.
    assert len({source for source, _ in pairs(passed_on, True)}) == 2
    assert len(pairs(passed_on, True)) == 14


@given(pairs(), st.sampled_from([1, 2, 3, 6]))
def test_any_partition_to_any_other(maps, ranks_per_node):
    """Layouts of no model: every tensor cut at random, every box held by anyone."""
    check(*maps, nodes_of(6, ranks_per_node))


@given(pairs(), st.permutations(range(6)), st.sampled_from([1, 2, 3]))
def test_other_names_for_the_ranks_move_the_same_bytes(maps, new_rank, ranks_per_node):
    source, target = maps
    node_of = nodes_of(6, ranks_per_node)
    renamed_nodes = [0] * 6
    for rank, node in enumerate(node_of):
        renamed_nodes[new_rank[rank]] = node
    plan = plan_transfer(source, target, node_of)
    other = plan_transfer(relabelled(source, new_rank), relabelled(target, new_rank), renamed_nodes)
    received = {new_rank[rank]: n for rank, n in plan.received_bytes.items()}
    assert dict(other.received_bytes) == received
    assert dict(other.inbound_bytes(renamed_nodes)) == dict(plan.inbound_bytes(node_of))


BIG = architecture(hidden_size=64, ffn_size=128, head_size=16, vocab_size=300)


def test_no_bucket_size_moves_a_byte_more():
    layout = TrainLayout(tp=4, pp=2, dp=2)
    source = megatron_shard_map(BIG, layout)
    target = vllm_shard_map(BIG, generation_groups(layout.grid, 2))
    for bucket_bytes in (4096, 5000, 2**16):
        check(source, target, nodes_of(16, 4), bucket_bytes)


def routes(plan) -> list:
    """A plan as plain values."""
    return [
        [(str(r.source), r.target, r.relay, [(f.tensor, f.box) for f in r.bundle.fragments])]
        for hop in (plan.reads, *plan.hops)
        for r in hop
    ]


DESCRIBED = """
from tests.unit.layout.test_planner import described
print(described())
"""


def described() -> str:
    """Digest of two plans, one of them from files, which are held by name."""
    layout = TrainLayout(tp=4, pp=2, dp=2)
    training = megatron_shard_map(BIG, layout)
    replicas = generation_groups(layout.grid, 2)
    regions = [
        whole(name, name, spec.shape, (f"model-{i % 3}.safetensors",))
        for i, (name, spec) in enumerate(BIG.tensors().items())
    ]
    files = ShardMap(BIG.tensors(), regions)
    nodes = nodes_of(16, 4)
    reshard = plan_transfer(training, vllm_shard_map(BIG, replicas), nodes, 4096)
    load = plan_transfer(files, training, nodes, 4096)
    return hashlib.sha256(repr([routes(reshard), routes(load)]).encode()).hexdigest()


def test_every_rank_computes_the_same_plan():
    assert described() == described()
    for seed in ("1", "2"):
        environ = {**os.environ, "PYTHONHASHSEED": seed}
        done = subprocess.run([sys.executable, "-c", DESCRIBED], env=environ, capture_output=True)
        assert done.stdout.decode().strip() == described(), done.stderr
