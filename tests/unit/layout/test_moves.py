"""One rank's part of a plan, and how fragments become messages."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from tests.unit.layout.models import architecture
from tests.unit.layout.partitions import pairs
from verl_hpc.layout.grid import nodes_of
from verl_hpc.layout.megatron import TrainLayout, megatron_shard_map
from verl_hpc.layout.messages import message_sizes, messages, routes_by_pair
from verl_hpc.layout.moves import moves_of
from verl_hpc.layout.planner import plan_transfer
from verl_hpc.layout.report import message_census
from verl_hpc.layout.shard_map import ShardMap, TensorSpec, whole
from verl_hpc.layout.vllm import vllm_shard_map

RANKS = range(6)


@st.composite
def plans(draw):
    source, target = draw(pairs(len(RANKS)))
    return plan_transfer(source, target, nodes_of(len(RANKS), draw(st.sampled_from([1, 2, 3, 6]))))


def by_peer(pairs):
    """Messages by the rank at the other end, in order."""
    messages = {}
    for peer, message in pairs:
        if message:
            messages.setdefault(peer, []).append(message)
    return messages


def sends(moves, hop=0):
    return by_peer((step.to, step.sends) for step in moves.hops[hop])


def receives(moves, hop=0):
    return by_peer((step.frm, step.receives) for step in moves.hops[hop])


def test_mixed_types_travel_widest_first():
    """So that, from the start of a message, each lies at a multiple of its own width."""
    shapes = {"a": (3, "bfloat16"), "b": (3, "float32"), "c": (3, "int8"), "d": (2, "float64")}
    tensors = {n: TensorSpec((size,), dtype) for n, (size, dtype) in shapes.items()}

    def held_by(rank):
        return ShardMap(tensors, [whole(n, n, s.shape, (rank,)) for n, s in tensors.items()])

    plan = plan_transfer(held_by(0), held_by(1), (0, 0))
    (message,) = sends(moves_of(plan, 0))[1]
    assert [send.fragment.tensor for send in message] == ["d", "b", "a", "c"]


@given(plans())
def test_what_one_rank_sends_another_expects_in_the_same_order(plan):
    moves = {rank: moves_of(plan, rank) for rank in RANKS}
    for index in range(len(plan.hops)):
        sent = {
            (rank, peer): [[s.fragment for s in message] for message in messages]
            for rank in RANKS
            for peer, messages in sends(moves[rank], index).items()
        }
        expected = {
            (peer, rank): [[r.fragment for r in message] for message in messages]
            for rank in RANKS
            for peer, messages in receives(moves[rank], index).items()
        }
        assert sent == expected
        assert all(rank != peer for rank, peer in sent)


@given(plans(), st.data())
def test_large_fragments_travel_alone_and_small_ones_fill_buckets(plan, data):
    for routes in (grouped for hop in plan.hops for grouped in routes_by_pair(hop).values()):
        bundles = [route.bundle for route in routes]
        whole = [f for b in bundles for f in b.fragments]
        largest = max(f.num_bytes for f in whole)
        bucket_bytes = data.draw(st.integers(largest, 6 * largest))
        cut = [[f for f, _ in message] for message in messages(routes, bucket_bytes)]
        assert sorted(map(id, (f for message in cut for f in message))) == sorted(map(id, whole))
        sizes = [sum(f.num_bytes for f in message) for message in cut]
        assert sizes == message_sizes(bundles, bucket_bytes) == sorted(sizes, reverse=True)
        assert max(sizes) <= bucket_bytes
        small = [m for m in cut if len(m) > 1 or 4 * m[0].num_bytes < bucket_bytes]
        assert all(4 * f.num_bytes < bucket_bytes for message in small for f in message)
        by_place = sorted(small, key=lambda message: whole.index(message[0]))
        for message, following in pairwise(by_place):
            filled = sum(f.num_bytes for f in message)
            assert filled + following[0].num_bytes > bucket_bytes, "no message ends early"


@given(plans())
def test_the_census_counts_the_messages_of_all_ranks(plan):
    sizes = [
        sum(s.fragment.num_bytes for s in message)
        for rank in RANKS
        for hop in moves_of(plan, rank).hops
        for message in (step.sends for step in hop if step.sends)
    ]
    census = message_census(plan)
    assert sorted(sizes) == sorted(size for size, n in census.items() for _ in range(n))
    assert sum(size * n for size, n in census.items()) == sum(plan.received_bytes.values())


def test_a_rank_outside_the_plan_does_nothing():
    arch = architecture()
    plan = plan_transfer(
        megatron_shard_map(arch, TrainLayout()), vllm_shard_map(arch, [(1,)]), (0, 0, 0)
    )
    moves = moves_of(plan, 2)
    assert not moves.copies
    assert not moves.reads
    assert not any(moves.hops)
    assert not moves_of(plan, 0).copies, "rank 0 needs nothing, it only sends"
