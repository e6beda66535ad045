"""Collectives over groups of ranks, timed by torch.distributed and by MPI."""

import numpy as np
import pytest
import torch

from verl_hpc.runtime.preflight import speeds
from verl_hpc.runtime.preflight.speeds import OPERATIONS, bus_gb_s, measure

pytestmark = pytest.mark.world(4)

PAIRS = [(0, 2), (1, 3)]


def test_every_operation_over_every_group(here):
    groups = {"all": [(0, 1, 2, 3)], "pairs": PAIRS, "alone": [(0,), (1,), (2,), (3,)]}
    speeds_of_all = list(measure(here, groups, [4096, 10_001], with_mpi=True, repeats=1))
    assert [(s.groups, s.num_bytes, s.operation) for s in speeds_of_all] == [
        (name, size, operation)
        for name, sizes in (("all", (4096, 10_016)), ("pairs", (4096, 10_008)))
        for size in sizes
        for operation in OPERATIONS
    ]
    for speed in speeds_of_all:
        measured = (speed.operation, speed.num_bytes, speed.num_ranks, speed.seconds)
        assert speed.gb_s == bus_gb_s(*measured)
        assert speed.seconds > 0 and speed.mpi_seconds > 0
    assert here.control.allgather(speeds_of_all) == [speeds_of_all] * 4, (
        "the slowest of all ranks, on all"
    )


def test_a_part_of_the_ranks_and_no_mpi(here):
    found = list(measure(here, {"part": [(1, 2)]}, [1024], with_mpi=False, repeats=1))
    assert [s.operation for s in found] == list(OPERATIONS)
    assert {s.mpi_gb_s for s in found} == {None}


def test_the_calls_do_what_they_are_called(here, monkeypatch):
    """Buffers of each rank's number, instead of ones."""
    rank = here.world.rank
    mine = next(ranks for ranks in PAIRS if rank in ranks)
    other = mine[0] if rank == mine[1] else mine[1]
    made = []

    def numbered(count, *of, device=None):
        made.append(np.full(count, rank, np.float32) if of else torch.full((count,), float(rank)))
        return made[-1]

    def kept(like, *of):
        made.append(np.full(like, -1, np.float32) if of else torch.full_like(like, -1))
        return made[-1]

    here.groups.make(PAIRS)
    with monkeypatch.context() as patched:
        patched.setattr(torch, "ones", numbered)
        patched.setattr(torch, "empty_like", kept)
        calls = speeds._torch_calls(here, PAIRS, mine, 4)
    data, _, received = made
    they_do(calls, mine, other, received, data)
    data.fill_(rank)
    calls["broadcast"]()
    assert data.tolist() == [mine[0]] * 4

    made.clear()
    comm = speeds._communicator(here, PAIRS)
    with monkeypatch.context() as patched:
        patched.setattr(np, "ones", numbered)
        patched.setattr(np, "empty", kept)
        calls = speeds._mpi_calls(comm, 4)
    data, received, _ = made
    they_do(calls, mine, other, received, received)
    calls["broadcast"]()
    assert data.tolist() == [mine[0]] * 4
    comm.Free()


def they_do(calls, mine, other, received, reduced):
    """All but the broadcast; torch reduces in place."""
    calls["point-to-point"]()
    assert received.tolist() == [other] * 4
    calls["all-gather"]()
    assert received.tolist() == [mine[0], mine[0], mine[1], mine[1]]
    calls["all-reduce"]()
    assert reduced.tolist() == [max(mine)] * 4
