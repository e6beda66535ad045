"""Trouble on one placement of a split or asynchronous run: the job ends, says why, and resumes."""

import re
import time
from functools import cache, partial

import pytest

from tests.jobs import launch
from tests.jobs.conftest import ppo
from tests.jobs.slowly import slow_down
from verl_hpc.checkpoint.schema import step_name
from verl_hpc.checkpoint.store import complete_steps
from verl_hpc.metrics.log import read_metrics
from verl_hpc.runs.ranks import read_ranks

STEPS = 4
LATE_AFTER_S = 2
# A second a step, so that others can be met while it scores; and once longer, if that is asked.
REWARD = """
import os, time

def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    time.sleep(float(os.environ.pop("SLEEP_ONCE", 0.15)))
    return (sum(map(ord, solution_str)) % 5) / 4
"""
TOOL = """
from verl_hpc.environments.environment import Environment

class Says(Environment):
    def reset(self, problem):
        pass

    def step(self, tokens, text):
        return str(sum(tokens))
"""
SPLIT = {"actor": "0-1", "critic": 2, "reward": 3, "rollout": "0-1"}


def split(model, directory):
    """PPO whose critic and reward function have ranks of their own."""
    tree = ppo(model, directory)
    (directory / "reward.py").write_text(REWARD)
    tree["roles"]["critic"]["parallel"] = {}
    tree["runtime"] = {"late_after_s": LATE_AFTER_S}
    return tree | {"placement": SPLIT}


def ahead(model, directory, staleness=1):
    """GRPO that generates the next steps on ranks of their own while one trains."""
    tree = split(model, directory)
    # One at a time, so that they can be met while they are generated.
    tree["rollout"] |= {"staleness": staleness, "max_num_seqs": 1, "max_response_tokens": 40}
    changes = {"recipe": "rl", "roles": {}, "algorithm": {"old_log_probs": "rollout"}}
    return tree | changes | {"placement": {"train": "0-1", "rollout": "2-3"}}


def last_step(run, steps=STEPS):
    return run / "checkpoints" / step_name(steps)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory, model):
    """The run nothing happened to, but that its reward function once took its time; its output."""
    directory = tmp_path_factory.mktemp("undisturbed")
    config = launch.write_config(directory / "config.yaml", split(model, directory))
    output = launch.succeeds(launch.start_training(4, config, SLEEP_ONCE="8"))
    return directory / "run", output


def is_in(run, rank, operator, after_step):
    """Whether a rank has come to an operator, with steps to resume from."""
    if len(complete_steps(run / "checkpoints")) < after_step:
        return False
    ranks = read_ranks(run)
    return ranks is not None and ranks.ranks[rank].operator == operator


def kill_while(config, run, victim, rank, operator):
    """Kill a rank while another is in an operator: the job ends within seconds, and names the
    victim first."""
    job = launch.start_training(4, config, before=partial(slow_down, str(rank), operator))
    assert launch.wait_until(partial(is_in, run, rank, operator, 1), job), launch.finish(job)
    assert len(launch.ranks_of(job)) == 4
    assert launch.kill_rank(job, victim)
    began = time.monotonic()
    status, output = launch.finish(job, timeout=60)
    assert status != 0
    assert time.monotonic() - began < 20
    failures = re.findall(r"^verl_hpc: (rank \d) .*: it was ended by SIGKILL", output, re.MULTILINE)
    assert failures[:1] == [f"rank {victim}"], output


KILLS = [
    pytest.param(2, 3, "reward", id="critic-while-reward"),
    pytest.param(3, 0, "reward to actor", id="reward-in-a-move", marks=pytest.mark.slow),
    pytest.param(0, 3, "reward", id="actor-while-reward", marks=pytest.mark.slow),
    pytest.param(1, 3, "wait", id="actor-at-the-end", marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("victim", "rank", "operator"), KILLS)
def test_kill_9_and_resume_to_the_last_bit(model, tmp_path, undisturbed, victim, rank, operator):
    config = launch.write_config(tmp_path / "config.yaml", split(model, tmp_path))
    kill_while(config, tmp_path / "run", victim, rank, operator)
    launch.trained(4, config)
    assert launch.differing(last_step(undisturbed[0]), last_step(tmp_path / "run")) == []
    assert [row["step"] for row in read_metrics(tmp_path / "run")] == [1, 2, 3, 4]


@pytest.fixture(scope="module")
def undisturbed_ahead(tmp_path_factory, model):
    """The directory of a run that generates ahead, to which nothing happened, by what it is."""

    @cache
    def run_of(name):
        directory = tmp_path_factory.mktemp(name)
        launch.trained(
            4, launch.write_config(directory / "config.yaml", AHEAD[name](model, directory))
        )
        return directory / "run"

    return run_of


def with_a_tool(model, directory):
    """Two turns a response; no model this small calls the tool, so that it must say something."""
    (directory / "tool.py").write_text(TOOL)
    tree = ahead(model, directory)
    tree["rollout"]["environment"] = {"name": f"{directory}/tool.py:Says", "max_turns": 2}
    return tree


AHEAD = {"one": ahead, "two": partial(ahead, staleness=2), "tool": with_a_tool}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "victim", "rank", "operator"),
    [
        ("one", 0, 2, "rollout"),
        ("two", 2, 0, "update_actor"),
        ("two", 0, 2, "rollout"),
        ("two", 3, 0, "wait"),
        ("tool", 2, 0, "update_actor"),
    ],
)
def test_kill_9_of_a_run_that_generates_ahead(
    model, tmp_path, undisturbed_ahead, name, victim, rank, operator
):
    """A save has the responses that were made ahead of it, finished or not."""
    whole, run = undisturbed_ahead(name), tmp_path / "run"
    config = launch.write_config(tmp_path / "config.yaml", AHEAD[name](model, tmp_path))
    kill_while(config, run, victim, rank, operator)
    resumed = len(complete_steps(run / "checkpoints"))
    assert 0 < resumed < STEPS
    launch.trained(4, config)
    assert launch.differing(last_step(whole), last_step(run)) == []
    lags, expected = ([r["rollout/lag/mean"] for r in read_metrics(d)] for d in (run, whole))
    assert lags == expected and lags[resumed] > 0


def test_a_slow_placement_is_told_and_those_that_wait_for_it_are_not(undisturbed):
    _, output = undisturbed
    reports = output.split("verl_hpc: late ranks:\n")[1:]
    assert any(re.match(r"  rank 3 on \S+: in 'reward' for \d+ s\n", text) for text in reports)
    assert any("of 4 ranks wait in 'wait'" in text for text in reports)
    late = re.findall(r"^  rank [23] on \S+: in '(.*)' for \d+ s$", output, re.MULTILINE)
    assert [operator for operator in late if " to " in operator or operator == "wait"] == []
