"""How data-parallel ranks of a node add up gradients and share weights."""

import pytest
import torch
import torch.distributed as dist

from verl_hpc.engines.megatron import data_parallel
from verl_hpc.transfer.process_memory import Proof

# More than one piece, and a last one that is shorter.
NUM = 3 * data_parallel.PIECE_BYTES // 4 + 7


@pytest.fixture
def group(here):
    """One that has not been asked yet."""
    group = dist.new_group(list(range(here.world.size)))
    yield group
    dist.destroy_process_group(group)


def part_of(whole: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
    return whole.view(group.size(), -1)[group.rank()]


def gradients(rank: int, size: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(rank)
    return torch.randn(size * NUM, generator=generator).to(dtype)


@pytest.mark.world(1, 2, 4)
def test_gradients_of_others_are_added_in_their_order(group):
    size = group.size()
    whole = gradients(group.rank(), size)
    expected = whole.clone()
    for rank in range(size):
        if rank != group.rank():
            expected += gradients(rank, size)
    data_parallel.reduce_scatter(part_of(whole, group), whole, group=group)
    assert torch.equal(part_of(whole, group), part_of(expected, group))
    others = [i for i in range(size) if i != group.rank()]
    untouched = gradients(group.rank(), size).view(size, -1)[others]
    assert torch.equal(whole.view(size, -1)[others], untouched)


@pytest.mark.world(1, 2, 4)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_weights_are_those_of_their_owners(group, dtype):
    whole = torch.zeros(group.size() * NUM, dtype=dtype)
    part_of(whole, group).copy_(part_of(gradients(group.rank(), group.size(), dtype), group))
    data_parallel.all_gather(whole, part_of(whole, group), group=group)
    size = group.size()
    for rank, part in enumerate(whole.view(size, -1)):
        assert torch.equal(part, gradients(rank, size, dtype).view(size, -1)[rank])


@pytest.mark.world(2, 4)
def test_where_one_rank_may_not_read_all_use_gloo(group, monkeypatch):
    if group.rank() == 1:
        monkeypatch.setattr(Proof, "holds", lambda words: False)
    monkeypatch.setattr(data_parallel, "read_memory", None)
    whole = torch.full((group.size() * NUM,), 1.0)
    data_parallel.reduce_scatter(part_of(whole, group), whole, group=group)
    assert torch.equal(part_of(whole, group), torch.full((NUM,), float(group.size())))
    data_parallel.all_gather(whole, part_of(whole, group), group=group)
    assert torch.equal(whole, torch.full_like(whole, group.size()))
