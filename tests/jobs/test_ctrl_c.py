"""Ctrl-C, which a terminal sends to all processes of the job in it."""

import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from tests.jobs.conftest import ppo
from tests.jobs.launch import MPIEXEC, finish, wait_until, write_config
from tests.slow import all_slow
from tests.unit.waiting import within

RESTART = 85
TRAIN = [sys.executable, "-m", "verl_hpc", "train"]
STARTS = {
    "one rank": (TRAIN, -signal.SIGINT),
    "two forked ranks": ([*TRAIN, "--ranks", "2"], 128 + signal.SIGINT),
    "two ranks of mpiexec": ([str(MPIEXEC), "-n", "2", *TRAIN], None),
}
"""How a run is started, and what the second Ctrl-C makes its status. None is not ours: MPICH's
mpiexec gives 255, or on a busy machine 0, when its proxy fails an assertion of its own."""
WAITS = """
import os
import time
from pathlib import Path

def compute_score(solution_str):
    Path(__file__).with_name(f"scoring_{os.getpid()}").touch()
    while True:
        time.sleep(0.1)
"""


@pytest.fixture
def started(request, model, tmp_path):
    """`started(**changes)` is a job that is alone in a terminal."""
    words, _ = STARTS[request.param]

    def start(**changes):
        size = 1 if request.param == "one rank" else 2
        tree = ppo(model, tmp_path) | {"steps": 1000, "parallel": {"tensor_parallel": size}}
        config = write_config(tmp_path / "config.yaml", tree | changes)
        return subprocess.Popen(
            [*words, "--config", str(config)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            process_group=0,
            # A shell starts what is to run in its background with SIGINT ignored.
            preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
        )

    yield start


def press(job):
    os.killpg(job.pid, signal.SIGINT)


@pytest.mark.parametrize(
    "started", ["two forked ranks", *all_slow("one rank", "two ranks of mpiexec")], indirect=True
)
def test_the_first_saves_and_leaves_as_term_does(started, tmp_path):
    job = started(checkpoint={"every": 0})
    metrics = tmp_path / "run/metrics.jsonl"
    assert wait_until(lambda: metrics.exists() and metrics.read_text(), job)
    press(job)
    status, output = finish(job)
    assert status == RESTART, output
    assert output.count("verl_hpc: Ctrl-C: the run saves and leaves") == 1
    assert "Ctrl-C again ends at once" in output
    assert ", which is saved: signal SIGINT" in output
    assert (tmp_path / "run/checkpoints/latest").is_symlink()
    assert "KeyboardInterrupt" not in output and "Traceback" not in output


def scoring(directory):
    """Process numbers of the ranks that have begun to score."""
    return [path.name.removeprefix("scoring_") for path in directory.glob("scoring_*")]


def wait_for_end(processes):
    while any(Path(f"/proc/{pid}").exists() for pid in processes):
        time.sleep(0.05)


@pytest.mark.parametrize("started", [*list(STARTS)[1:], *all_slow("one rank")], indirect=True)
def test_the_second_ends_at_once(started, tmp_path, request):
    start = request.node.callspec.params["started"]
    expected, ranks = STARTS[start][1], 1 if start == "one rank" else 2
    (tmp_path / "waits.py").write_text(WAITS)
    reward = {"function": f"{tmp_path}/waits.py:compute_score", "timeout_s": 900}
    job = started(reward=reward)
    assert wait_until(lambda: len(scoring(tmp_path)) == ranks, job)
    press(job)
    time.sleep(1.5)
    assert job.poll() is None
    press(job)
    status, output = finish(job, 30)
    assert expected in (None, status), output
    within(30, wait_for_end, scoring(tmp_path))
    assert "KeyboardInterrupt" not in output and "Traceback" not in output
