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


ENOUGH = {
    "cores of their own": ([binding(r, range(8 * r, 8 * r + 8), asked=8) for r in range(8)], False),
    "enough shared ones": ([binding(r, range(64), asked=8) for r in range(8)], True),
    "a laptop": ([binding(r, {0, 1}, there=2) for r in range(4)], True),
    "two nodes": ([binding(r, {0, 1}, host=f"n{r}") for r in range(2)], False),
}


@pytest.mark.parametrize(("ranks", "do_overlap"), ENOUGH.values(), ids=ENOUGH)
def test_cores_that_are_enough(ranks, do_overlap):
    assert check_bindings(ranks) == []
    assert bool(overlaps(ranks)) is do_overlap


ALONE = [binding(r, {r}, asked=8) for r in range(8)]
TOO_FEW = [
    (ALONE, r"n0: rank 0 has 1 core \(0\) of the 8 asked for.*the node has 64"),
    (ALONE, "--cpus-per"),
    ([binding(r, {0}, asked=1) for r in range(4)], r"n0: 4 ranks share 1 core \(0\) and need 4"),
    ([binding(r, {0}) for r in range(4)], "share 1 core"),
    ([binding(r, {0}, 4, host=f"n{r:02}") for r in range(10)], "n03: .*; and 6 more nodes"),
]


@pytest.mark.parametrize(("ranks", "words"), TOO_FEW)
def test_too_few_cores(ranks, words):
    """An srun that does not inherit what sbatch was asked for leaves one core a rank."""
    with pytest.raises(ClusterError, match=words):
        check_bindings(ranks)


def test_a_node_that_has_fewer_cores_than_asked_for():
    ranks = [binding(r, {0, 1}, asked=4, there=2) for r in range(2)]
    (warning,) = check_bindings(ranks)
    assert warning == "n0: rank 0 has 2 cores (0-1) of the 4 asked for; the node has 2"
    (trouble,) = find_trouble(ranks)
    assert not trouble.avoidable


WORLD = World(0, 1, 0, 1, 0, (0,), "n0", "cpu")


def test_what_slurm_was_asked_for():
    assert read_binding(WORLD, {"SLURM_STEP_ID": "0", "SLURM_CPUS_PER_TASK": "6"}).asked == 6
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
