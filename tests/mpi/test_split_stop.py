"""Asked to leave on one rank, a split run leaves on all, and continues from what it saved."""

import pytest

from tests.jobs.launch import differing
from tests.mpi.placed_runs import configure, run
from tests.mpi.recipe_runs import write_reward
from tests.slow import all_slow
from verl_hpc.checkpoint.schema import step_name
from verl_hpc.config.requests import Request, leave_request, read_requests
from verl_hpc.runtime.stop import Signals, StopRequest
from verl_hpc.trainer.train import train

pytestmark = pytest.mark.world(4)

STEPS = 3
PPO = {"roles": {"critic": {"parallel": {}, "optimizer": {"lr": 1e-4}}}}
ROLLOUT = {
    "engine": "hf",
    "max_num_seqs": 4,
    "num_samples": 4,
    "max_prompt_tokens": 96,
    "max_response_tokens": 12,
}
AHEAD = {"algorithm": {"old_log_probs": "rollout"}}
RUNS = {
    "rollout-with-actor": (
        "ppo",
        PPO | {"placement": {"actor": "0-1", "critic": 2, "reward": 3, "rollout": "0-1"}},
    ),
    "rollout-apart": ("ppo", PPO | {"placement": {"actor": "0-1", "critic": 2, "rollout": 3}}),
    "ahead": (
        "grpo",
        AHEAD
        | {"placement": {"train": "0-1", "rollout": "2-3"}, "rollout": ROLLOUT | {"staleness": 1}},
    ),
    "two-ahead-reward-apart": (
        "grpo",
        AHEAD
        | {
            "placement": {"train": "0-1", "rollout": 2, "reward": 3},
            "rollout": ROLLOUT | {"staleness": 2},
        },
    ),
}
SETTINGS = {
    "steps": STEPS,
    "batch": {"size": 2, "mini_batches": 2},
    "parallel": {"tensor_parallel": 2},
    "rollout": ROLLOUT,
    "checkpoint": {"every": 0},
}


def settings(name, model, directory, life):
    recipe, changes = RUNS[name]
    return configure(directory, model, f"{name}-{life}", recipe, **(SETTINGS | changes))


@pytest.fixture(scope="module", autouse=True)
def reward(here, shared_directory):
    """The file that all runs name."""
    write_reward(here, shared_directory)


@pytest.fixture(scope="module")
def whole(here, tiny_model, shared_directory):
    """`whole(name)`: the last step of the run that nobody disturbed."""
    known = {}

    def get(name):
        if name not in known:
            config = settings(name, tiny_model(), shared_directory, "whole")
            run(here, config)
            known[name] = last_step(config)
        return known[name]

    return get


def last_step(config):
    return config.run_directory / "checkpoints" / step_name(STEPS)


def when(here, monkeypatch, rank, stage, time, act):
    """Act on `rank` as it enters a stage for the so-manieth time."""
    entered, enter = [], here.watchdog.enter

    def listen(name):
        entered.append(name)
        if (here.world.rank, name, entered.count(name)) == (rank, stage, time):
            act()
        enter(name)

    monkeypatch.setattr(here.watchdog, "enter", listen)


@pytest.mark.parametrize(
    ("name", "rank", "stage", "time", "saved"),
    # A rank that trains, one that generates alone, and one of those that generate ahead; as a
    # stage begins, and as weights go from one to another; with a step to save, and without.
    [
        ("rollout-with-actor", 0, "rollout", 2, 1),
        ("two-ahead-reward-apart", 2, "rollout", 3, 2),
        *all_slow(("rollout-apart", 3, "rollout", 1, 0), ("ahead", 1, "rollout to train", 1, 1)),
    ],
)
def test_one_rank_is_told(
    here, tiny_model, shared_directory, monkeypatch, whole, name, rank, stage, time, saved
):
    """`saved` is the step that is saved: a step that has changed no weights is dropped, another
    finished."""
    life = f"{rank}-{stage}-{time}".replace(" ", "-")
    config = settings(name, tiny_model(), shared_directory, life)
    signals = Signals()

    def hear():
        signals.stop_request, signals.reason = StopRequest.RESTART_NOW, "signal SIGTERM"

    when(here, monkeypatch, rank, stage, time, hear)
    result = train(here, config, signals)
    assert (result.outcome, result.progress.step) == ("restart", saved)
    told = here.world.rank == rank
    assert result.reason == ("signal SIGTERM" if told else "another rank was asked to stop")
    again = train(here, config, Signals())
    assert (again.outcome, again.progress.step) == ("finished", STEPS)
    here.control.barrier()
    if "ahead" not in name:  # the first step of a life has responses of its own weights
        assert differing(whole(name), last_step(config)) == []


@pytest.mark.parametrize(("name", "rank"), [("rollout-apart", 3), ("ahead", 2)])
def test_ranks_that_generate_are_told_to_stop_now(
    here, tiny_model, shared_directory, monkeypatch, name, rank
):
    config = settings(name, tiny_model(), shared_directory, "requested")

    def ask():
        leave_request(config.run_directory, Request(kind="stop", now=True, by="ann"))

    when(here, monkeypatch, rank, "rollout", 1, ask)
    result = train(here, config, Signals())
    assert (result.outcome, result.progress.step) == ("stopped", 0)
    here.control.barrier()
    assert read_requests(config.run_directory) == []
