"""One process group for a set of ranks, made on all ranks in one order; what a rank asks the job's
store for meanwhile does not grow with the world."""

import pytest
import torch
import torch.distributed as dist

from tests.counting_store import counted_store
from verl_hpc.engines.factory import start_layouts, stop_layouts
from verl_hpc.layout.megatron import TrainLayout
from verl_hpc.rollout.vllm_groups import start_groups, stop_groups
from verl_hpc.runtime import gloo


def total(group, rank: int) -> float:
    tensor = torch.tensor([float(2**rank)])
    dist.all_reduce(tensor, group=group)
    return tensor.item()


@pytest.mark.world(4)
def test_groups_that_overlap_in_part(here, groups):
    rank = here.world.rank
    pairs, middle = [(0, 1), (2, 3)], [(1, 2)]
    groups.make(pairs)
    groups.make(middle)
    assert total(groups.mine(pairs), rank) == (3 if rank < 2 else 12)
    if rank in (1, 2):
        assert total(groups.mine(middle), rank) == 6
    else:
        assert groups.mine(middle) is None


@pytest.mark.world(4)
def test_a_set_of_ranks_has_one_group(here, groups):
    before = len(dist.distributed_c10d._world.pg_map)
    groups.make([(0, 1), (2, 3)])
    groups.make([[2, 3], [0, 1]], "gloo")  # what None means where there is no GPU
    assert len(dist.distributed_c10d._world.pg_map) == before + 1
    assert groups.mine([(0, 1), (2, 3)]) is groups.mine([[0, 1], [2, 3]], "gloo")


@pytest.mark.world(4)
def test_closing_frees_the_groups_and_new_ones_can_be_made(here, groups):
    before = set(dist.distributed_c10d._world.pg_map)
    for _ in range(2):
        groups.make([(0, 1, 2)])
        groups.close()
        assert set(dist.distributed_c10d._world.pg_map) == before
    groups.make([(0, 3)])
    if here.world.rank in (0, 3):
        assert total(groups.mine([(0, 3)]), here.world.rank) == 9


ON_ALL_SIZES = pytest.mark.world(2, 4, 8, 16)


@pytest.fixture
def pairs(here):
    return [(rank, rank + 1) for rank in range(0, here.world.size, 2)]


@ON_ALL_SIZES
def test_store_calls_do_not_grow_with_the_world(here, groups, pairs, monkeypatch):
    """Where groups are large from 3 ranks on: the smallest world in which every group that grows
    with the world is one, is 8."""
    monkeypatch.setattr(gloo, "MESHED", 2)
    monkeypatch.setattr("vllm.distributed.parallel_state._WORLD", None)
    with counted_store() as store:
        start_layouts(groups, [TrainLayout(tp=2, dp=len(pairs))], seed=1)
        start_groups(here.world, pairs)
    # A small group costs a `set`, and a `get` a rank; a large one a `set`. Megatron-core has this
    # rank alone, its pair, and the data-parallel group and all ranks, which in a world of two are
    # the former two, and of which the former is small in one of four. vLLM has all ranks, this rank
    # alone and its pair, each twice.
    connected = {2: 3 + 10, 4: 3 + 2 + 6, 8: 3 + 6, 16: 3 + 6}[here.world.size]
    num_groups = 8 if here.world.size == 2 else 10
    assert store.calls == {"set": num_groups, "get": connected, "wait": connected}
    stop_groups()
    stop_layouts()


@ON_ALL_SIZES
def test_a_rank_of_no_replica_makes_as_many_groups(here, pairs):
    """Else the next one had another name here than there."""
    first = pairs[0]
    for _ in range(2):
        start_groups(here.world, [first])
        stop_groups()
        everyone = dist.new_group(list(range(here.world.size)))
        assert total(everyone, here.world.rank) == 2**here.world.size - 1
        dist.destroy_process_group(everyone)


@ON_ALL_SIZES
def test_large_groups_connect_when_they_are_used(here, groups, monkeypatch):
    world = here.world
    everyone, odd = tuple(range(world.size)), tuple(range(1, world.size, 2))
    monkeypatch.setattr(gloo, "MESHED", 0)
    for _ in range(2):
        with counted_store() as store:
            groups.make([everyone, odd])
            # In a world of two, all are alone.
            made = 2 if world.rank in odd or len(odd) == 1 else 1
            assert store.calls == {"set": made}
        assert total(groups.mine([everyone]), world.rank) == 2**world.size - 1
        if world.rank in odd:
            # It takes no other group's connections away.
            dist.destroy_process_group(groups.mine([odd]))
        heard = [None] * world.size
        dist.all_gather_object(heard, world.rank, group=groups.mine([everyone]))
        assert heard == list(everyone)
        dist.barrier(groups.mine([everyone]))
        here.control.barrier()
        groups.close()
