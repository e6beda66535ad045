"""Ranks that are threads fail where those of a job would hang, and say why."""

import itertools
import time

import pytest

from tests.unit.ranks import AnotherRankFailedError, on_ranks

COLLECTIVES = {
    "gather to rank 0": lambda c: c.gather(1),
    "gather to rank 1": lambda c: c.gather(1, root=1),
    "allgather": lambda c: c.allgather(1),
    "broadcast from rank 0": lambda c: c.broadcast(1, root=0),
    "broadcast from rank 1": lambda c: c.broadcast(1, root=1),
    "barrier": lambda c: c.barrier(),
}


@pytest.mark.parametrize("names", itertools.combinations(COLLECTIVES, 2))
@pytest.mark.parametrize("splits", [False, True])
def test_ranks_that_start_different_collectives_fail(names, splits):
    def work(control):
        part = control.split(0) if splits else control
        COLLECTIVES[names[control.rank]](part)

    with pytest.raises(AssertionError) as caught:
        on_ranks(2, work)
    for rank, name in enumerate(names):
        assert f"rank {rank} starts {name}" in str(caught.value)


@pytest.mark.parametrize("failing", [0, 1, 2])
def test_a_rank_that_fails_ends_those_that_wait_and_its_error_is_raised(failing):
    ended = []

    def work(control):
        if control.rank == failing:
            raise ValueError("the cause")
        try:
            control.split(0).barrier()
        except AnotherRankFailedError:
            ended.append(control.rank)
            raise

    begin = time.monotonic()
    with pytest.raises(ValueError, match="the cause"):
        on_ranks(3, work)
    assert time.monotonic() - begin < 50
    assert sorted([*ended, failing]) == [0, 1, 2]
