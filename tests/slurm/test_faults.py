"""What breaks while a run trains: ranks, nodes, the controller."""

import shutil
import signal
import sys

import pytest

from tests.slurm.runs import PATIENCE_S, STEPS
from verl_hpc.errors import ClusterError
from verl_hpc.testing.slurm_lab import processes


@pytest.fixture
def mended(lab):
    """Every node is back when the test is over."""
    yield
    lab.mend()


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


@pytest.mark.slow
def test_a_first_node_that_is_taken_out_of_service_is_survived(lab, run, undisturbed, mended):
    """The one with rank 0 and the batch script; Slurm puts the job back by itself."""
    run.submit()
    run.wait_for_step(1)
    lab.administer("scontrol", "update", "nodename=n0", "state=down", "reason=test")
    run.finish()
    assert "Node failure on n0" in run.log
    assert (run.restarts, run.attempts) == (1, 2)
    run.assert_equals(undisturbed)


@pytest.mark.slow
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
