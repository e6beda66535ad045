"""HybridFlow's regrouping (arXiv 2409.19256, section 5.3), checked on what ranks hold."""

from itertools import product

import pytest

from tests.unit.layout.models import architecture
from tests.unit.layout.simulate import elements_of
from verl_hpc.errors import LayoutError
from verl_hpc.layout.generation import contiguous_groups, generation_groups
from verl_hpc.layout.megatron import TrainLayout, megatron_shard_map
from verl_hpc.layout.vllm import vllm_shard_map

PAPER = TrainLayout(pp=1, tp=4, dp=2)
"""Training 1-4-2 (p-t-d) of the paper's worked example, on G1 to G8."""

LARGER = [
    (tp, pp, dp, rollout_tp)
    for tp, pp, dp in ((2, 1, 2), (4, 1, 2), (4, 2, 1), (8, 1, 1), (8, 2, 2), (16, 1, 1))
    for rollout_tp in (1, 2, 4, 8, 16)
    if tp % rollout_tp == 0
]

MODEL = architecture(num_heads=16, num_kv_heads=16, ffn_size=16, vocab_size=64, num_layers=2)


def one_based(groups):
    return [[rank + 1 for rank in group] for group in groups]


def held(shard_map, ranks):
    return {rank: elements_of(shard_map, rank) for rank in ranks}


def test_the_papers_worked_example():
    assert one_based(PAPER.grid.groups("tp")) == [[1, 2, 3, 4], [5, 6, 7, 8]]
    assert one_based(PAPER.grid.groups("dp")) == [[1, 5], [2, 6], [3, 7], [4, 8]]
    groups = generation_groups(PAPER.grid, 2)
    assert one_based(groups) == [[1, 3], [2, 4], [5, 7], [6, 8]]


def test_the_papers_vanilla_grouping_leaves_four_gpus_without_overlap():
    """In HybridFlow-V, G2, G3, G6 and G7 hold nothing of what they will generate with."""
    arch = architecture(num_kv_heads=8)
    source = held(megatron_shard_map(arch, PAPER), range(8))
    groups = generation_groups(PAPER.grid, 2, "contiguous")
    assert one_based(groups) == [[1, 2], [3, 4], [5, 6], [7, 8]]
    target = held(vllm_shard_map(arch, groups), range(8))
    sharded = "model.layers.0.mlp.down_proj.weight"
    apart = [r + 1 for r in range(8) if not source[r][sharded] & target[r][sharded]]
    assert apart == [2, 3, 6, 7]


@pytest.mark.parametrize("tp, pp, dp, rollout_tp", LARGER)
def test_every_training_shard_lies_inside_the_ranks_generation_shard(tp, pp, dp, rollout_tp):
    layout = TrainLayout(tp=tp, pp=pp, dp=dp)
    groups = generation_groups(layout.grid, rollout_tp)
    ranks = range(layout.num_ranks)
    source = held(megatron_shard_map(MODEL, layout), ranks)
    target = held(vllm_shard_map(MODEL, groups), ranks)
    for rank in ranks:
        for tensor, part in source[rank].items():
            assert part <= target[rank][tensor], (rank, tensor)


@pytest.mark.parametrize("tp, pp, dp, rollout_tp", LARGER)
@pytest.mark.parametrize("grouping", ["zero_redundancy", "contiguous"])
def test_groups_partition_the_ranks_and_share_shards(tp, pp, dp, rollout_tp, grouping):
    """d_g = p t / t_g ranks of one training replica generate with the same shard."""
    layout = TrainLayout(tp=tp, pp=pp, dp=dp)
    groups = generation_groups(layout.grid, rollout_tp, grouping)
    everyone = list(range(layout.num_ranks))
    assert {len(g) for g in groups} == {rollout_tp}
    assert sorted(r for g in groups for r in g) == everyone

    target = held(vllm_shard_map(MODEL, groups), everyone)
    place = {rank: i for group in groups for i, rank in enumerate(group)}
    for replica, i in product(range(dp), range(rollout_tp)):
        sharing = [rank for rank in layout.grid.ranks(dp=replica) if place[rank] == i]
        assert len(sharing) == tp * pp // rollout_tp
        assert all(target[rank] == target[sharing[0]] for rank in sharing)


def test_engines_may_span_training_replicas_and_ranks_start_anywhere():
    wide, late = TrainLayout(tp=2, dp=4).grid, TrainLayout(tp=4, first_rank=8).grid
    assert generation_groups(wide, 4, "contiguous") == ((0, 1, 2, 3), (4, 5, 6, 7))
    assert generation_groups(late, 2) == ((8, 10), (9, 11))
    assert generation_groups(late, 2, "contiguous") == ((8, 9), (10, 11))


@pytest.mark.parametrize(
    "layout, rollout_tp, message",
    [
        (PAPER, 3, "tensor_parallel = 3 does not divide the 8 ranks"),
        (TrainLayout(tp=2, dp=4), 4, r"\(2\) .* multiple of .* \(4\); .* grouping: contiguous"),
    ],
)
def test_rollout_sizes_that_cannot_be_are_refused(layout, rollout_tp, message):
    with pytest.raises(LayoutError, match=message):
        generation_groups(layout.grid, rollout_tp)


def test_ranks_that_do_not_train_are_grouped_with_their_neighbours():
    assert contiguous_groups(4, 7, 2) == ((4, 5), (6, 7))
    assert contiguous_groups(2, 3, 1) == ((2,), (3,))
    assert contiguous_groups(5, 5, 1) == ((5,),)
    assert contiguous_groups(2, 9, 2, 2) == ((2, 3, 4, 5), (6, 7, 8, 9))
    grid = TrainLayout(tp=2, dp=2).grid
    assert generation_groups(grid, 1, "contiguous", 2) == ((0, 1), (2, 3))


@pytest.mark.parametrize(
    "first, last, sizes, words",
    [
        (4, 7, (3,), r"tensor_parallel = 3 does not divide the 4 ranks 4-7 .* a divisor of 4"),
        (2, 3, (4,), r"tensor_parallel = 4 does not divide the 2 ranks 2-3"),
        (0, 5, (2, 2), r"tensor_parallel = 2 x pipeline_parallel 2 = 4 does not divide the 6 "),
    ],
)
def test_a_pool_that_does_not_divide_is_refused(first, last, sizes, words):
    with pytest.raises(LayoutError, match=words):
        contiguous_groups(first, last, *sizes)
