"""What breaks while a run trains: ranks, nodes, the controller."""

import os
import shutil
import signal
import subprocess
import sys
import time

import pytest

from tests.slurm.runs import PATIENCE_S, STEPS
from verl_hpc.errors import ClusterError
from verl_hpc.testing.slurm_lab import processes
from verl_hpc.testing.slurm_lab.root import as_root


@pytest.fixture
def mended(lab):
    """Every node is back when the test is over."""
    yield
    lab.mend()


@pytest.mark.slow(reason="one of the three random faults; slow alone")
def test_a_killed_rank_ends_the_job_and_a_new_one_goes_on(lab, run, undisturbed):
    run.submit("checkpoint.every=1")
    run.wait_for_step(2)
    os.kill(run.ranks()[1], signal.SIGKILL)
    begin = time.monotonic()
    assert run.wait_for_end() == "FAILED"
    assert time.monotonic() - begin < lab.settings.kill_wait_s + 15
    assert "n1: task 1: Killed" in run.log
    assert run.restarts == 0
    run.submit("checkpoint.every=1")
    run.finish()
    assert run.attempts == 2
    run.assert_equals(undisturbed)


RAISES = """
import os
from verl_hpc.runtime.session import session
with session() as here:
    import verl_hpc.trainer.train
    raise ZeroDivisionError
os.write(2, b"went on")
"""


def test_ranks_that_fail_say_why_once_and_do_not_go_on(lab, tmp_path):
    """MPI_Abort may return under srun."""
    (tmp_path / "job.py").write_text(RAISES)
    words = ("srun", "--nodes=2", "--ntasks=2", "--mpi=pmi2", "--kill-on-bad-exit=1")
    with pytest.raises(ClusterError) as told:
        lab.run(*words, sys.executable, tmp_path / "job.py")
    assert str(told.value).count("Traceback (most recent call last)") == 1
    assert str(told.value).count(" failed in start-up:") == 1
    assert "went on" not in str(told.value)


@pytest.mark.slow(reason="one of the three random faults; slow alone")
def test_a_dead_node_is_replaced(lab, run, undisturbed, mended):
    """Power fails on a node of the run: Slurm notices, and starts the job on others."""
    run.submit("checkpoint.every=1")
    run.wait_for_step(2)
    assert run.nodes == "n[0-1]"
    lab.kill_node("n1")
    run.hurry()
    run.wait_for_life(1)
    run.finish()
    # Slurm says it of n1, or of the job where rank 0 has missed the other rank before Slurm did.
    assert "node failure" in run.log.lower()
    assert "n1" not in run.nodes
    assert run.restarts == 1
    run.assert_equals(undisturbed)


def test_a_first_node_that_is_taken_out_of_service_is_survived(lab, run, undisturbed, mended):
    """The one with rank 0 and the batch script; Slurm puts the job back by itself."""
    run.submit()
    run.wait_for_step(1)
    lab.administer("scontrol", "update", "nodename=n0", "state=down", "reason=test")
    run.finish()
    assert "Node failure on n0" in run.log
    assert (run.restarts, run.attempts) == (1, 2)
    run.assert_equals(undisturbed)


@pytest.mark.slow(reason="slow; the next one restarts it, too")
def test_a_controller_that_restarts_is_not_noticed(lab, run, undisturbed):
    """It finds the job again, passes the signal on, and requeues."""
    run.submit()
    run.wait_for_step(1)
    lab.stop_controller()
    lab.start_controller()
    run.signal("USR2")
    run.wait_for_life(1)
    run.finish()
    assert (run.restarts, run.attempts) == (1, 2)
    run.assert_equals(undisturbed)


def test_a_controller_that_is_away_is_waited_for(lab, run, undisturbed):
    """It is gone when the ranks have saved and the batch script asks to be requeued, which costs
    the script up to a minute."""
    run.submit()
    run.wait_for_step(1)
    ranks = run.ranks().values()
    lab.stop_controller()
    processes.send(signal.SIGUSR2, ranks)
    assert processes.wait_for(lambda: not any(map(processes.is_alive, ranks)), PATIENCE_S)
    lab.start_controller()
    run.finish()
    assert (run.restarts, run.attempts) == (1, 2)
    run.assert_equals(undisturbed)


def test_a_run_goes_on_with_fewer_nodes(run, undisturbed):
    saved = undisturbed.directory / "checkpoints"
    shutil.copytree(saved, run.directory / "checkpoints", symlinks=True)
    run.submit(f"steps={STEPS + 1}", nodes=1)
    run.finish()
    assert (run.nodes, run.checkpoints) == ("n0", list(range(1, STEPS + 2)))
    assert run.rank_logs.count("0: step ") == 1


@pytest.mark.slow(reason="the same on ranks without Slurm: tests/mpi/test_checkpoint.py")
def test_a_full_disk_costs_the_step_under_way(run, undisturbed, disk):
    """The disk has room for two steps; with more room the run resumes."""
    size = sum(f.stat().st_blocks * 512 for f in undisturbed.newest.rglob("*"))
    resize(disk, int(2.5 * size))
    run.directory.mkdir()
    (run.directory / "checkpoints").symlink_to(disk)
    run.hurry()
    run.submit("checkpoint.every=1")
    assert run.wait_for_end() == "FAILED"
    assert run.rank_logs.count("CheckpointError: could not write step_00000003 to ") == 1
    assert "No space left on device" in run.rank_logs
    assert run.checkpoints == [1, 2]
    resize(disk, 10 * size)
    run.submit("checkpoint.every=1")
    run.finish()
    run.assert_equals(undisturbed)


def resize(disk, num_bytes):
    with as_root():
        subprocess.run(["mount", "-o", f"remount,size={num_bytes}", disk], check=True)
