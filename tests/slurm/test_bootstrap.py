"""How ranks find each other, with MPI and without, and what they say of their cores."""

import os
import re
import socket
import subprocess
import sys

import pytest

from tests.slurm.runs import STEPS

# Below srun, found before the real one: whoever imports it fails.
TRAP = 'raise ImportError("mpi4py was imported where there is no MPI")\n'


@pytest.fixture
def no_mpi(tmp_path, monkeypatch):
    """Nothing that is submitted from here can import mpi4py."""
    trap = tmp_path / "trap/mpi4py"
    trap.mkdir(parents=True)
    (trap / "__init__.py").write_text(TRAP)
    monkeypatch.setenv("PYTHONPATH", str(trap.parent))
    program = "import mpi4py"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert "where there is no MPI" in done.stderr


def test_a_run_without_mpi_ends_with_the_same_weights(run, undisturbed, no_mpi):
    run.submit("site.mpi=none")
    run.finish()
    script = (run.directory / "job/job.sbatch").read_text()
    assert "--mpi=none" in script
    assert "train --bootstrap slurm" in " ".join(script.replace("\\\n", "").split())
    assert f"0: step {STEPS}/{STEPS}" in run.rank_logs
    assert "mpi4py" not in run.rank_logs
    run.assert_equals(undisturbed)


def test_the_trap_works(run, no_mpi):
    """A run with MPI fails on it."""
    run.submit(nodes=1)
    assert run.wait_for_end() == "FAILED"
    assert "mpi4py was imported where there is no MPI" in run.rank_logs


def test_every_rank_says_where_it_is(undisturbed):
    cores = len(os.sched_getaffinity(0))
    for rank in (0, 1):
        line = f"{rank}: rank {rank}/2 node n{rank} cpu 0"
        assert line in undisturbed.rank_logs
    if cores < 8:
        assert "verl_hpc: n0: rank 0 has" in undisturbed.rank_logs
        assert "of the 8 asked for" in undisturbed.rank_logs


def srun(lab, directory, *words, program):
    command = ["srun", *words, sys.executable, "-c", program]
    return subprocess.run(
        command, cwd=directory, env=lab.variables, capture_output=True, text=True, timeout=120
    )


RAISES = """
from verl_hpc.runtime.session import session
with session(bootstrap="slurm") as here:
    if here.world.rank == 1:
        raise ZeroDivisionError("rank 1 only")
    here.control.barrier()
"""


def test_a_bug_on_one_rank_ends_the_job_with_its_traceback(lab, tmp_path, no_mpi):
    words = ("--nodes=2", "--ntasks=2", "--mpi=none", "--kill-on-bad-exit=1")
    done = srun(lab, tmp_path, *words, program=RAISES)
    assert done.returncode != 0
    assert "verl_hpc: rank 1 of 2 on n1 failed" in done.stderr
    assert done.stderr.count("Traceback (most recent call last)") == 1
    assert "ZeroDivisionError: rank 1 only" in done.stderr


def test_a_port_that_is_taken(lab, tmp_path, no_mpi, monkeypatch):
    with socket.create_server(("0.0.0.0", 0)) as taken:
        monkeypatch.setenv("VERL_HPC_PORT", str(taken.getsockname()[1]))
        words = ("--nodes=1", "--ntasks=2", "--mpi=none", "--kill-on-bad-exit=1")
        done = srun(lab, tmp_path, *words, program=RAISES)
    assert done.returncode != 0
    assert "LaunchError: --bootstrap slurm: rank 0 cannot listen at 127.0.0.1:" in done.stderr
    assert "submit again, or set VERL_HPC_PORT" in done.stderr


BOUND = """
import os
os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
from verl_hpc.runtime.session import session
with session(bootstrap="slurm") as here:
    from verl_hpc.runtime.binding import report_binding
    report_binding(here)
"""


@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="needs two cores to deny one")
def test_two_ranks_on_one_core_are_refused(lab, tmp_path, no_mpi):
    words = ("--nodes=1", "--ntasks=2", "--cpus-per-task=1", "--mpi=none", "--kill-on-bad-exit=1")
    done = srun(lab, tmp_path, *words, program=BOUND)
    assert done.returncode != 0
    assert re.search(r"ClusterError: n\d: 2 ranks share 1 core", done.stderr)
    assert "Traceback" not in done.stderr


# Memory around what the MPI library allocates holds what no compression makes shorter.
FULL_OF_GARBAGE = """
import ctypes, os
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.malloc.argtypes = [ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]
garbage = os.urandom(1024)
for size in range(40, 1024, 16):
    blocks = [libc.malloc(size) for _ in range(4096)]
    for block in blocks:
        ctypes.memmove(block, garbage, size)
    for block in blocks[::64]:
        libc.free(block)
from verl_hpc.runtime.mpi import start_mpi
MPI = start_mpi(timeout_s=10)
print("met", MPI.COMM_WORLD.allreduce(1))
"""
WITH_MPI = ("--nodes=2", "--ntasks=2", "--mpi=pmi2", "--kill-on-bad-exit=1")


def test_ranks_meet_whatever_lies_in_memory_beside_an_address(lab, tmp_path):
    done = srun(lab, tmp_path, *WITH_MPI, program=FULL_OF_GARBAGE)
    assert done.stdout.splitlines() == ["met 2", "met 2"], done.stderr
    assert "mpi/pmi2" not in done.stderr


NEVER_COMES = """
import os, time
if os.environ["SLURM_PROCID"] == "1":
    time.sleep(600)
from verl_hpc.runtime.mpi import start_mpi
start_mpi(timeout_s=3)
"""


def test_a_rank_that_never_comes_is_not_waited_for_for_ever(lab, tmp_path):
    # As in a job: srun does not pass on all that ranks print as they end.
    log = f"--output={tmp_path}/%t.log"
    assert srun(lab, tmp_path, *WITH_MPI, log, program=NEVER_COMES).returncode != 0
    told = (tmp_path / "0.log").read_text()
    assert told.startswith("Timeout (0:00:03)!\n")
    assert " in start_mpi\n" in told
