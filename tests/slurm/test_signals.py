"""What Slurm and people tell a run while it trains."""

import os
import signal
import sys

from tests.slurm.runs import RESTART, set_pause


def wrapped_python(place, script, **paths):
    """A program that a job takes for its Python."""
    program = place / "python"
    program.write_text(script.format(python=sys.executable, **paths))
    program.chmod(0o755)
    return program


SLOW_TO_START = """#!/bin/sh
case "$*" in *train*) touch {started}; while [ ! -e {go} ]; do sleep 0.1; done ;; esac
exec {python} "$@"
"""


def test_a_job_that_is_preempted_while_its_ranks_start_goes_on_later(run, tmp_path):
    """Nobody is there to take TERM: it ends the ranks."""
    started, go = tmp_path / "started", tmp_path / "go"
    python = wrapped_python(tmp_path, SLOW_TO_START, started=started, go=go)
    run.submit(f"site.python={python}", "steps=1", nodes=1)
    run.wait(started.exists, "started")
    run.preempt()
    run.wait_for_life(1)
    go.touch()
    run.finish()
    assert (run.restarts, run.attempts, run.steps_done) == (1, 2, 1)


def test_a_cancelled_job_saves_and_stays_cancelled(run, undisturbed):
    run.submit()
    run.wait_for_step(1)
    run.lab.run("scancel", run.job)
    assert run.wait_for_end() == "CANCELLED"
    run.wait_until_gone()
    assert (run.restarts, run.attempts, len(run.checkpoints)) == (0, 1, 1)
    run.assert_saved_well(undisturbed)


SLOW_DISK = """
import os, time

fsync = os.fsync

def fsync_in_time(descriptor):
    saving = ".partial" in os.readlink(f"/proc/self/fd/{{descriptor}}")
    while saving and not os.path.exists("{go}"):
        time.sleep(0.05)
    fsync(descriptor)

os.fsync = fsync_in_time
"""
WITH_SLOW_DISK = """#!/bin/sh
case "$*" in *train*) export PYTHONPATH="{directory}${{PYTHONPATH:+:$PYTHONPATH}}" ;; esac
exec {python} "$@"
"""


def test_without_restarts_left_a_job_says_so_and_a_signal_while_it_saves_changes_nothing(
    run, undisturbed, tmp_path
):
    go = tmp_path / "go"
    (tmp_path / "sitecustomize.py").write_text(SLOW_DISK.format(go=go))
    python = wrapped_python(tmp_path, WITH_SLOW_DISK, directory=tmp_path)
    run.submit("--max-restarts", "0", f"site.python={python}")
    run.wait_for_step(1)
    run.signal("USR2")
    checkpoints = run.directory / "checkpoints"
    run.wait(lambda: list(checkpoints.glob(".*.partial")), "saving")
    for process in run.ranks().values():
        os.kill(process, signal.SIGTERM)
    go.touch()
    assert (run.wait_for_end(), run.exit_status) == ("FAILED", RESTART)
    assert "its 0 restarts are used up: submit again to resume" in run.log
    assert len(run.checkpoints) == 1
    run.assert_saved_well(undisturbed)


def test_a_chain_goes_on_with_its_next_job_and_the_one_after_has_nothing_to_do(run, undisturbed):
    """The first job is warned while it starts, and makes one step nevertheless."""
    run.submit("--resume-by", "chain", "--max-restarts", "2")
    first = int(run.job)
    run.wait(run.has_started, "started")
    run.signal("USR2")
    assert (run.wait_for_end(), run.exit_status) == ("FAILED", RESTART)
    assert run.checkpoints == [1]
    run.job = str(first + 1)
    run.finish()
    run.assert_equals(undisturbed)
    run.job = str(first + 2)
    run.finish()
    assert "the run has ended with status 0: nothing to do" in run.log
    assert run.attempts == 2


def test_the_time_limit_is_no_end(run, undisturbed):
    """Slurm warns a minute before the end, which an administrator moves to between one and two
    minutes from then, and away again for the next life; so no start is too slow for this test."""
    run.submit("site.signal_lead_s=60", "--max-restarts", "20")
    run.wait_for_step(1)
    set_pause(run.config.parent, 4.0)  # the warning comes before the last step
    run.set_time_limit(run.minutes + 2)
    run.wait_for_life(1)
    run.set_time_limit(60)
    run.finish()
    assert run.restarts >= 1
    assert "signal SIGUSR2" in run.rank_logs
    run.assert_equals(undisturbed)
