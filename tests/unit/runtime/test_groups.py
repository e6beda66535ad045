"""Groups of worlds that do not fit on a machine: one rank of them, and nobody who answers it."""

import pytest
import torch.distributed as dist
import torch.testing._internal.distributed.fake_pg  # noqa: F401 (it registers the backend)

from tests.counting_store import counted_store
from verl_hpc.engines.factory import start_layouts, stop_layouts
from verl_hpc.layout.megatron import TrainLayout
from verl_hpc.runtime import gloo
from verl_hpc.runtime.groups import Groups


@pytest.fixture(params=[128, 4096])
def world_size(request, monkeypatch):
    """The size of a default group that talks to nobody; gloo's groups are real, and unconnected."""
    plain = dist.distributed_c10d.ProcessGroupGloo
    monkeypatch.setattr(dist.distributed_c10d, "ProcessGroupGloo", plain)
    monkeypatch.setattr(gloo, "MESHED", 1)
    gloo.share_device()
    dist.init_process_group("fake", store=dist.HashStore(), rank=5, world_size=request.param)
    yield request.param
    dist.destroy_process_group()


def test_store_calls_of_layouts_do_not_grow_with_the_world(world_size):
    """Two layouts, as of an actor and a critic, share the groups that they have in common."""
    actor = TrainLayout(tp=8, pp=8, dp=world_size // 64)
    critic = TrainLayout(tp=4, pp=4, dp=world_size // 16)
    groups = Groups()
    with counted_store() as store:
        start_layouts(groups, [actor, critic], seed=1)
    # Of each layout tp, dp, pp, tp-pp, tp-dp and the first and the last stage; all ranks, and the
    # rank alone, which is connected at once.
    assert store.calls == {"set": 2 * 6 + 2, "get": 1, "wait": 1}
    stop_layouts()
    groups.close()
