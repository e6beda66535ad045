"""The control plane over gloo, in one process of several threads' ranks: no launcher, no MPI."""

from datetime import timedelta

import pytest
import torch.distributed as dist

from tests.unit.ranks import checked, in_threads
from verl_hpc.errors import ConfigError
from verl_hpc.runtime.control import Control
from verl_hpc.runtime.gloo_channel import GlooChannel


def on_ranks(size, work, timeout_s=20.0):
    """What `work(control)` gives on each rank, each a thread."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)

    def rank(number):
        client = dist.TCPStore("127.0.0.1", store.port, timeout=timedelta(seconds=20))
        return work(Control(GlooChannel(client, number, size, timeout_s)))

    return checked(in_threads(size, rank))


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
        assert all_values == [0, 1, 2]
        assert gathered == ([0, 1, 2] if rank == 2 else [])
        assert (heard, one, none) == ("from one", True, False)


def test_groups_and_groups_of_groups():
    def work(control):
        half = control.split(control.rank % 2)
        again = half.split(0)
        return half.rank, half.allgather(control.rank), again.allgather(control.rank)

    assert on_ranks(4, work) == [
        (0, [0, 2], [0, 2]),
        (0, [1, 3], [1, 3]),
        (1, [0, 2], [0, 2]),
        (1, [1, 3], [1, 3]),
    ]


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

    assert on_ranks(2, work) == [(3, None)] * 2


def test_a_wait_in_a_part_tells_its_ranks():
    def work(control):
        part = control.split(control.rank % 2)
        part.barrier()
        again = part.split(0)
        again.barrier()
        return part.ranks, control.waiting_for, part.is_world, control.waiting_since

    parts = [[0, 2], [1], [0, 2]]
    assert on_ranks(3, work) == [(part, part, False, None) for part in parts]


def test_one_rank_alone():
    assert on_ranks(1, lambda control: control.allgather("me")) == [["me"]]


def test_a_peer_that_does_not_come_is_an_error_and_not_a_hang():
    def work(control):
        if control.rank == 0:
            with pytest.raises(RuntimeError):
                control.allgather("hello?")
        return control.rank

    assert on_ranks(2, work, timeout_s=1.0) == [0, 1]
