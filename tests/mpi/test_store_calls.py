"""What a rank asks the job's store for while a run's groups are made: no more in a larger world."""

import pytest
import torch
import torch.distributed as dist

from tests.counting_store import counted_store
from verl_hpc.engines.factory import start_layouts, stop_layouts
from verl_hpc.layout.megatron import TrainLayout
from verl_hpc.rollout.vllm_groups import start_groups, stop_groups
from verl_hpc.runtime import gloo
from verl_hpc.runtime.groups import Groups

pytestmark = pytest.mark.world(2, 4, 8, 16)


@pytest.fixture
def groups():
    made = Groups()
    yield made
    made.close()


@pytest.fixture
def pairs(here):
    return [(rank, rank + 1) for rank in range(0, here.world.size, 2)]


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


def test_a_rank_of_no_replica_makes_as_many_groups(here, pairs):
    """Else the next one had another name here than there."""
    first = pairs[0]
    for _ in range(2):
        start_groups(here.world, [first])
        stop_groups()
        everyone = dist.new_group(list(range(here.world.size)))
        assert total(everyone, here.world.rank) == 2**here.world.size - 1
        dist.destroy_process_group(everyone)


def test_large_groups_connect_when_they_are_used(here, groups, monkeypatch):
    world = here.world
    everyone, odd = tuple(range(world.size)), tuple(range(1, world.size, 2))
    monkeypatch.setattr(gloo, "MESHED", 0)
    for _ in range(2):
        with counted_store() as store:
            groups.make([everyone, odd])
            made = (
                2 if world.rank in odd or len(odd) == 1 else 1
            )  # in a world of two, all are alone
            assert store.calls == {"set": made}
        assert total(groups.mine([everyone]), world.rank) == 2**world.size - 1
        if world.rank in odd:
            dist.destroy_process_group(
                groups.mine([odd])
            )  # takes no other group's connections away
        heard = [None] * world.size
        dist.all_gather_object(heard, world.rank, group=groups.mine([everyone]))
        assert heard == list(everyone)
        dist.barrier(groups.mine([everyone]))
        here.control.barrier()
        groups.close()


def total(group, rank: int) -> float:
    tensor = torch.tensor([float(2**rank)])
    dist.all_reduce(tensor, group=group)
    return tensor.item()
