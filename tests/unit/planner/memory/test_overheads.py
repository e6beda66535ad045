"""Communicators of a rank; `tests/dry_gpu` holds those of a layout against what is used."""

from verl_hpc.layout.megatron import TrainLayout
from verl_hpc.planner.memory.overheads import groups_of, num_communicators


def test_groups_are_those_of_the_rank():
    layout = TrainLayout(tp=2, dp=4, pp=2, ep=4, first_rank=4)
    ranks = {tuple(first + i * step for i in range(n)) for first, step, n in groups_of(layout, 7)}
    grids = (layout.grid.groups("tp"), layout.grid.groups("dp"), layout.grid.groups("pp"))
    experts = (layout.expert_grid.groups("ep"), layout.expert_grid.groups("edp"))
    mine = {group for groups in (*grids, *experts) for group in groups if 7 in group}
    assert ranks == mine | {tuple(range(4, 20))}


def test_only_the_ends_of_a_pipeline_sum_tied_embeddings():
    layout = TrainLayout(tp=2, dp=2, pp=4)
    untied = [groups_of(layout, rank) for rank in range(16)]
    tied = [groups_of(layout, rank, sums_embeddings=True) for rank in range(16)]
    ends = [{(rank % 4, 12, 2)} if rank // 4 in (0, 3) else set() for rank in range(16)]
    assert [more - fewer for more, fewer in zip(tied, untied, strict=True)] == ends
    # Two stages are the whole pipeline, and one stage has one copy.
    for pp in (1, 2):
        layout = TrainLayout(tp=2, pp=pp)
        assert groups_of(layout, 0, sums_embeddings=True) == groups_of(layout, 0)


def test_layouts_share_groups_of_the_same_ranks():
    actor, critic = (TrainLayout(tp=4, dp=4), False), (TrainLayout(tp=4, dp=2, pp=2), False)
    assert num_communicators([actor], 0, 0) == 1 + 3
    assert num_communicators([actor, actor], 0, 0) == 1 + 3
    # Tensor parallelism and all ranks are the same; replicas and stages are not.
    assert num_communicators([actor, critic], 0, 4) == 1 + 3 + 2 + 1
    elsewhere = (TrainLayout(tp=4, first_rank=16), True)
    assert num_communicators([actor, elsewhere], 0, 1) == 1 + 3
    assert num_communicators([(TrainLayout(dp=8), False)], 0, 0) == 1 + 1
