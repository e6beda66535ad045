"""One process group for a set of ranks, made on all ranks in one order."""

import pytest
import torch
import torch.distributed as dist

from verl_hpc.runtime.groups import Groups

pytestmark = pytest.mark.world(4)


@pytest.fixture
def groups():
    made = Groups()
    yield made
    made.close()


def total(group, rank: int) -> float:
    tensor = torch.tensor([float(2**rank)])
    dist.all_reduce(tensor, group=group)
    return tensor.item()


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


def test_a_set_of_ranks_has_one_group(here, groups):
    before = len(dist.distributed_c10d._world.pg_map)
    groups.make([(0, 1), (2, 3)])
    groups.make([[2, 3], [0, 1]], "gloo")  # what None means where there is no GPU
    assert len(dist.distributed_c10d._world.pg_map) == before + 1
    assert groups.mine([(0, 1), (2, 3)]) is groups.mine([[0, 1], [2, 3]], "gloo")


def test_closing_frees_the_groups_and_new_ones_can_be_made(here, groups):
    before = set(dist.distributed_c10d._world.pg_map)
    for _ in range(2):
        groups.make([(0, 1, 2)])
        groups.close()
        assert set(dist.distributed_c10d._world.pg_map) == before
    groups.make([(0, 3)])
    if here.world.rank in (0, 3):
        assert total(groups.mine([(0, 3)]), here.world.rank) == 9
