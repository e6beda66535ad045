"""Cores of ranks: as text, and whether they are what was asked for."""

import os
import subprocess
import sys

import pytest

from verl_hpc.errors import ClusterError
from verl_hpc.runtime.binding import (
    Binding,
    check_bindings,
    describe,
    find_trouble,
    overlaps,
    read_binding,
)
from verl_hpc.runtime.world import World


def binding(rank, cores, asked=None, there=64, host="n0", device="cpu"):
    return Binding(rank, host, device, frozenset(cores), asked, there)


def test_a_line():
    shown = describe(binding(5, range(60, 72), device="cuda:5", host="n012"), 128)
    assert shown.startswith("rank 5/128 node n012 gpu 5 cpu 60-71")
    assert describe(binding(0, {1}), 4).startswith("rank 0/4 node n0 cpu 1")


def test_ranks_with_cores_of_their_own():
    fine = [binding(r, range(8 * r, 8 * r + 8), asked=8) for r in range(8)]
    assert check_bindings(fine) == []
    assert not overlaps(fine)


def test_srun_that_does_not_inherit_the_cores():
    """One core a rank, of the eight that sbatch was asked for."""
    with pytest.raises(ClusterError) as caught:
        check_bindings([binding(r, {r}, asked=8) for r in range(8)])
    for words in ("n0: rank 0 has 1 core (0) of the 8 asked for", "the node has 64", "--cpus-per"):
        assert words in str(caught.value)


def test_all_ranks_on_one_core():
    with pytest.raises(ClusterError, match=r"n0: 4 ranks share 1 core \(0\) and need 4"):
        check_bindings([binding(r, {0}, asked=1) for r in range(4)])
    with pytest.raises(ClusterError, match="share 1 core"):
        check_bindings([binding(r, {0}) for r in range(4)])


def test_ranks_that_share_enough_cores_are_not_bound_and_fine():
    shared = [binding(r, range(64), asked=8) for r in range(8)]
    assert check_bindings(shared) == []
    assert overlaps(shared)


def test_a_laptop_with_fewer_cores_than_ranks():
    """mpiexec -n 4 on two cores: nobody asked for more."""
    assert check_bindings([binding(r, {0, 1}, there=2) for r in range(4)]) == []


def test_a_node_that_has_fewer_cores_than_asked_for():
    ranks = [binding(r, {0, 1}, asked=4, there=2) for r in range(2)]
    (warning,) = check_bindings(ranks)
    assert warning == "n0: rank 0 has 2 cores (0-1) of the 4 asked for; the node has 2"
    (trouble,) = find_trouble(ranks)
    assert not trouble.avoidable


def test_nodes_do_not_overlap_each_other():
    ranks = [binding(0, {0, 1}, host="n0"), binding(1, {0, 1}, host="n1")]
    assert check_bindings(ranks) == []
    assert not overlaps(ranks)


def test_every_node_in_trouble_is_named_and_a_thousand_are_counted():
    ranks = [binding(r, {0}, asked=4, host=f"n{r:02}") for r in range(10)]
    with pytest.raises(ClusterError, match="n03: .*; and 6 more nodes"):
        check_bindings(ranks)


WORLD = World(0, 1, 0, 1, 0, (0,), "n0", "cpu")


def test_what_slurm_was_asked_for():
    step = {"SLURM_STEP_ID": "0", "SLURM_CPUS_PER_TASK": "6"}
    assert read_binding(WORLD, step).asked == 6
    assert read_binding(WORLD, {"SLURM_CPUS_PER_TASK": "6"}).asked is None
    assert read_binding(WORLD, {"SLURM_STEP_ID": "0"}).asked is None


def test_the_kernels_word_counts():
    """A process that is bound to one core says so."""
    program = (
        "from tests.unit.runtime.test_binding import WORLD\n"
        "from verl_hpc.runtime.binding import read_binding\n"
        "print(sorted(read_binding(WORLD, {}).cores))\n"
    )
    core = min(os.sched_getaffinity(0))
    done = subprocess.run(
        ["taskset", "-c", str(core), sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == f"[{core}]\n"
