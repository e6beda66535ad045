"""Faults in a row, at random moments of a run: three, and twenty with --slow."""

import random
import signal
import time
from itertools import pairwise

import pytest

from tests.slurm.runs import PATIENCE_S, STEPS, Run, set_pause, write_run
from verl_hpc.slurm.hostlist import expand_hosts
from verl_hpc.testing.slurm_lab import processes

WORDS = ("checkpoint.every=1", "--max-restarts", "99")


def kill_a_rank(run, chance):
    processes.send(signal.SIGKILL, [chance.choice(list(run.ranks().values()))])


def cut_a_nodes_power(run, chance):
    run.lab.kill_node(a_node(run, chance))


def take_a_node_out_of_service(run, chance):
    name = a_node(run, chance)
    run.lab.administer("scontrol", "update", f"nodename={name}", "state=down", "reason=test")


def a_node(run, chance):
    return chance.choice(expand_hosts(run.nodes))


def signal_a_rank(run, chance):
    number = chance.choice([signal.SIGTERM, signal.SIGUSR2])
    processes.send(number, [chance.choice(list(run.ranks().values()))])


def preempt(run, chance):
    run.preempt()


def cancel(run, chance):
    run.lab.run("scancel", run.job)


TWO_OTHERS = [kill_a_rank, preempt]
OTHERS_OFTEN = [kill_a_rank] * 9 + [signal_a_rank] * 5 + [preempt] * 2 + [cancel] * 2
OTHERS_OFTEN.append(take_a_node_out_of_service)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("faults", "steps", "pause"),
    [(TWO_OTHERS, STEPS, 1.0), pytest.param(OTHERS_OFTEN, 66, 0.5, marks=pytest.mark.slow)],
    ids=["three", "twenty"],
)
def test_faults_in_a_row_leave_the_weights_of_an_undisturbed_run(
    faults, steps, pause, lab, model, tmp_path, undisturbed
):
    chance = random.Random(20)
    # Slurm 22.05 on a busy machine kills a requeued job once more when a node that had died is back
    # and among its nodes, so no attempt follows on such a node.
    faults = [*chance.sample(faults, len(faults)), cut_a_nodes_power]
    calm = undisturbed
    if steps != STEPS:
        calm = Run(lab, write_run(tmp_path, model, name="calm", steps=steps))
        calm.submit("checkpoint.every=1").finish()

    run = Run(lab, write_run(tmp_path, model, name="hit", steps=steps))
    set_pause(tmp_path, pause)  # or a run may end before Slurm has hit it
    run.submit(*WORDS)
    for life, fault in enumerate(faults):
        run.wait_for_life(life)
        run.wait(run.ranks, "started")
        before = run.steps_done
        if life % 3:  # among steps and saves, else while it starts
            run.wait(lambda: run.steps_done > before, "a step further")  # noqa: B023
        time.sleep(chance.uniform(0, 3))
        done = run.steps_done
        assert done < steps, "nothing was left to disturb"
        fault(run, chance)
        wait_for_the_end_of(run, life)
        lab.mend()
        # The save of the last step may have been under way.
        assert max(run.checkpoints, default=0) >= done - 1, "a step that was saved is lost"
    run.finish()
    run.assert_equals(calm)
    assert run.attempts == len(faults) + 1
    further = [later - step for step, later in pairwise(run.steps_told())]
    assert set(further) <= {0, 1}, "a step that was saved was made again"


def wait_for_the_end_of(run, life):
    """Slurm, or the batch script, starts the run again; if neither does, its user."""
    over = lambda: run.attempts > life + 1 or run.is_over()  # noqa: E731
    assert processes.wait_for(over, PATIENCE_S, 0.2), f"waits for ever: {run}"
    if run.is_over():
        run.submit(*WORDS)
