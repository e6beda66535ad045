"""What a rank has already, and of which of it a checksum is taken on the way."""

import pytest
import torch

from verl_hpc.layout.box import Box, View
from verl_hpc.layout.moves import Copy
from verl_hpc.layout.planner import plan_transfer
from verl_hpc.layout.shard_map import Region, ShardMap, TensorSpec
from verl_hpc.transfer.checksum import checksum
from verl_hpc.transfer.execute import OwnCopies
from verl_hpc.transfer.memory import Memory
from verl_hpc.transfer.sums import Sums

SHAPE = (6, 4)


def own_copy() -> Copy:
    """A tensor that rank 0 has and needs in another place."""
    specs, box = {"t": TensorSpec(SHAPE, "float32")}, Box((0, 0), SHAPE)
    there = ShardMap(specs, [Region("t", box, (0,), View("t", 0, (4, 1)))])
    (bundle,) = plan_transfer(there, there, (0,)).bundles
    (fragment,) = bundle.fragments
    return Copy(fragment, View("t", 0, (4, 1)), (View("t", 0, (4, 1)),))


OWN = own_copy()


def summed(source: torch.Tensor, target: torch.Tensor) -> Sums:
    sums = Sums(0, ())
    memory = Memory({"t": source}, {"t": target}, target.dtype)
    OwnCopies([OWN], memory, {OWN.fragment}).run(sums)
    return sums


def test_what_travels_as_it_lies_is_summed_as_it_is_copied():
    source, target = torch.randn(SHAPE), torch.zeros(SHAPE)
    sums = summed(source, target)
    assert torch.equal(source, target)
    assert sums.knows([OWN.fragment])
    assert sums.of(OWN.fragment, target) == checksum(source).item()


@pytest.mark.parametrize(
    ("device", "dtype"), [("cpu", torch.bfloat16), ("meta", torch.float32)], ids=str
)
def test_what_travels_as_other_bytes_or_from_a_device_is_not(device, dtype):
    """Its message is summed instead."""
    source = torch.randn(SHAPE, device=device)
    sums = summed(source, torch.zeros(SHAPE, dtype=dtype, device=device))
    assert not sums.knows([OWN.fragment])
