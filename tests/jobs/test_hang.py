"""A rank that hangs is named, with what it is in, by `hang`."""

import json
import os
import signal
import time

import pytest

from tests.jobs.conftest import ppo
from tests.jobs.launch import ranks_of, start_training, verl_hpc, wait_until, write_config
from verl_hpc.runs.ranks import read_ranks

LATE = 1
# Sleeps in short pieces, so that only the stack tells that it will never end.
REWARD = f"""
import os
import time


def wait_for_godot():
    while True:
        time.sleep(0.1)  # here


def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    if os.environ["RANK"] == "{LATE}":
        wait_for_godot()
    return 1.0
"""
LINE = 1 + REWARD.splitlines().index("        time.sleep(0.1)  # here")


@pytest.fixture(scope="module")
def hung(model, tmp_path_factory):
    """A run of two ranks, of which one never comes out of the reward function."""
    directory = tmp_path_factory.mktemp("hung")
    tree = ppo(model, directory) | {"roles": {}, "algorithm": {}, "parallel": {}, "checkpoint": {}}
    tree |= {"steps": 3, "batch": {"size": 4}, "runtime": {"late_after_s": 2}}
    tree["reward"]["timeout_s"] = 3600
    (directory / "reward.py").write_text(REWARD)
    config = write_config(directory / "config.yaml", tree)
    job = start_training(2, config)
    run = directory / "run"
    try:
        assert wait_until(lambda: is_late(run), job), job.communicate()[0]
        yield run
    finally:
        for rank in ranks_of(job):
            os.kill(rank, signal.SIGKILL)
        output, _ = job.communicate(timeout=240)
    assert f"rank {LATE} on" in output.partition("late ranks:")[2], output


def is_late(run):
    """Whether a rank is late in the reward function; in the start it may be for want of cores."""
    ranks = read_ranks(run)
    return ranks is not None and [p.operator for p in ranks.late] == ["reward"]


def hang(run, *words):
    return verl_hpc("hang", run, *words)


def test_the_late_rank_its_operator_and_its_line_are_named(hung):
    done = hang(hung)
    assert done.returncode == 0, done.stderr
    before, first, others = done.stdout.split("\n\n")
    assert f"late: rank {LATE} on" in before and ", in 'reward' for" in before
    heading, *calls = first.splitlines()
    assert heading.startswith(f"rank {LATE} on ") and heading.endswith(": in reward")
    assert calls[0].split()[0] == "wait_for_godot"
    assert calls[0].endswith(f"reward.py:{LINE}")
    assert any("compute_score" in call for call in calls)
    assert others.startswith("rank 0 on ") and "in reward, waiting for other ranks" in others


def test_json(hung):
    done = hang(hung, "--json")
    assert done.returncode == 0, done.stderr
    ranks = json.loads(done.stdout)["ranks"]
    assert [rank["late"] for rank in ranks] == [False, True]
    assert [rank["waits"] for rank in ranks] == [True, False]
    assert ranks[LATE]["threads"][0]["calls"][0][0] == "wait_for_godot"


def test_a_stopped_process_is_told(hung):
    rank = read_ranks(hung).ranks[LATE]
    os.kill(rank.pid, signal.SIGSTOP)
    try:
        done = hang(hung)
        assert "the process is stopped (state T); no answer to SIGURG" in done.stdout
        time.sleep(7)
        assert f"silent, no Python code runs in them: rank {LATE}" in hang(hung).stdout
    finally:
        os.kill(rank.pid, signal.SIGCONT)


def test_it_goes_on_hanging(hung):
    """None of the looks above has ended it: the last test of the file."""
    assert hang(hung).returncode == 0
