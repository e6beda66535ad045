"""The control plane over gloo: no launcher, no MPI. Other tests have channels of threads."""

import math
from datetime import timedelta

import pytest
import torch.distributed as dist

from tests.unit import ranks
from verl_hpc.errors import ConfigError
from verl_hpc.runtime.gloo_channel import GlooChannel


def on_ranks(size, work, timeout_s=20.0):
    """What `work(control)` gives on each rank, each a thread."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)

    def channel(rank):
        client = dist.TCPStore("127.0.0.1", store.port, timeout=timedelta(seconds=20))
        return GlooChannel(client, rank, size, timeout_s)

    return ranks.on_ranks(size, work, channel, math.inf)


def test_collectives_of_values_of_different_sizes():
    def work(control):
        control.barrier()
        mine = {"rank": control.rank, "text": "x" * 1000 * control.rank}
        return (
            [v["rank"] for v in control.allgather(mine) if len(v["text"]) == 1000 * v["rank"]],
            [v["rank"] for v in control.gather(mine, root=2)],
            control.broadcast("from one" if control.rank == 1 else None, root=1),
            control.any(control.rank == 2),
            control.any(False),
        )

    results = on_ranks(3, work)
    for rank, (all_values, gathered, heard, one, none) in enumerate(results):
        assert (all_values, gathered) == ([0, 1, 2], [0, 1, 2] if rank == 2 else [])
        assert (heard, one, none) == ("from one", True, False)


def test_groups_and_groups_of_groups():
    def work(control):
        half = control.split(control.rank % 2)
        again = half.split(0)
        return half.rank, half.allgather(control.rank), again.allgather(control.rank)

    expected = [(0, [0, 2], [0, 2]), (0, [1, 3], [1, 3]), (1, [0, 2], [0, 2]), (1, [1, 3], [1, 3])]
    assert on_ranks(4, work) == expected


def test_failing_together():
    def work(control):
        def check():
            if control.rank == 1:
                raise ConfigError("steps = 0")

        with pytest.raises(ConfigError) as caught:
            control.together(check)
        return str(caught.value)

    assert on_ranks(2, work) == ["steps = 0 (on rank 1)", "steps = 0"]


def test_waits_are_counted_for_the_watchdog():
    def work(control):
        control.barrier()
        control.allgather(control.rank)
        return control.num_waits, control.waiting_since

    assert on_ranks(2, work) == [(2, None)] * 2


def test_a_wait_in_a_part_tells_its_ranks():
    def work(control):
        part = control.split(control.rank % 2)
        part.barrier()
        part.split(0).barrier()
        return part.ranks, control.waiting_for, part.is_world, control.waiting_since

    parts = [[0, 2], [1], [0, 2]]
    assert on_ranks(3, work) == [(part, part, False, None) for part in parts]


def test_a_peer_that_does_not_come_is_an_error_and_not_a_hang():
    assert on_ranks(1, lambda control: control.allgather("me")) == [["me"]]

    def work(control):
        # In this redistribution no rank gives or lacks anything, and none waits.
        control.exchange([], [])
        if control.rank == 0:
            # gloo's own, or that of the control plane.
            with pytest.raises((RuntimeError, TimeoutError)):
                control.allgather("hello?")
        return control.rank

    assert on_ranks(2, work, timeout_s=1.0) == [0, 1]
