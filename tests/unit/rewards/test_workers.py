"""Reward functions in processes of a rank: the scores they would give in it, whatever happens."""

import os
import signal
import threading
import time
from contextlib import suppress
from functools import partial

import pytest

from tests.unit.waiting import within
from verl_hpc.config.load import parse_config
from verl_hpc.config.reward import RewardConfig
from verl_hpc.errors import RewardError
from verl_hpc.rewards import workers as module
from verl_hpc.rewards.request import Request
from verl_hpc.rewards.scorer import make_scorer
from verl_hpc.rewards.workers import Workers, calls_ahead

FILE = """
import os, signal, time
from pathlib import Path

HERE = Path(__file__).parent


def score(solution_str, ground_truth, extra_info, data_source, row, response_ids):
    if solution_str == "bad":
        raise ValueError("no answer")
    if solution_str == "tokens":
        return [float(token) for token in response_ids]
    if solution_str == "nan":
        return float("nan")
    if solution_str == "slow":
        time.sleep(60)
    if solution_str == "dies":
        os.kill(os.getpid(), signal.SIGKILL)
    if solution_str == "dies once" and not (HERE / "died").exists():
        (HERE / "died").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    if solution_str == "stuck":
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])
        (HERE / "stuck").write_text(str(os.getpid()))
        time.sleep(60)
    return {"score": len(solution_str) / 3 + ground_truth, "level": row["level"], "by": os.getpid()}
"""


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    """The directory of the reward function's file."""
    made = tmp_path_factory.mktemp("reward")
    (made / "reward.py").write_text(FILE)
    return made


@pytest.fixture(scope="module")
def opened(directory):
    """`opened(count, **settings)` gives workers and the scorer they score for."""
    made = {}

    def make(count=2, **settings):
        config = RewardConfig(**{"function": f"{directory}/reward.py:score"} | settings)
        key = count, config.model_dump_json()
        if key not in made:
            made[key] = Workers(config.calls())
            made[key].open(count)
        return made[key], make_scorer(config)

    yield make
    for workers in made.values():
        workers.close()


def request(response, index=0):
    known = {"response_ids": [3, 1, 2], "columns": partial(dict, level=7.0)}
    return Request(index, "set", 1, {}, response, f"line {index}", **known)


def outcomes(workers, scorer, *responses):
    requests = [request(response, i) for i, response in enumerate(responses)]
    futures = [workers.score(scorer.functions, asked, 1) for asked in requests]
    return [future.result() for future in futures]


def test_scores_are_those_that_the_rank_would_give(opened):
    workers, scorer = opened(3)
    texts = ["x" * i for i in range(40)]
    found = [one["reward"] for one in outcomes(workers, scorer, *texts)]
    mine = scorer([request(text, i) for i, text in enumerate(texts)])
    assert [s.value for s in found] == [s.value for s in mine]
    assert [s.metrics["level"] for s in found] == [7.0] * 40
    processes = {s.metrics["by"] for s in found}
    assert 1 <= len(processes) <= 3 and os.getpid() not in processes


def test_a_number_for_each_token_comes_back(opened):
    workers, scorer = opened(3)
    (found,) = outcomes(workers, scorer, "tokens")
    assert found["reward"].per_token == [3.0, 1.0, 2.0]
    assert [found["reward"]] == scorer([request("tokens")])


def test_all_terms_are_scored(opened, directory):
    terms = {"mine": {"function": f"{directory}/reward.py:score"}, "same": {"function": "length"}}
    terms["same"]["options"] = {"cap": 10, "buffer": 5}
    workers, scorer = opened(1, function="auto", terms=terms)
    (found,) = outcomes(workers, scorer, "abc")
    by_function = [[found[function.setting]] for function in scorer.functions]
    (mine,) = scorer([request("abc")])
    assert scorer.combined(by_function)[0].value == mine.value == 2.0


@pytest.mark.parametrize(
    "response, words",
    [
        ("bad", "ValueError: no answer"),
        ("nan", "the score is nan"),
        ("slow", "ran longer than timeout_s = 0.5"),
        ("dies", "the process that scored it has ended twice"),
    ],
)
def test_a_failure_ends_the_run_or_counts_zero(opened, response, words):
    workers, scorer = opened(timeout_s=0.5)
    scored = outcomes(workers, scorer, "ok", response, "fine")
    error = scored[1]["reward"]
    assert isinstance(error, RewardError)
    assert words in str(error) and "line 1" in str(error) and "on_error to zero" in str(error)
    assert [scored[i]["reward"].value for i in (0, 2)] == [2 / 3 + 1, 4 / 3 + 1]

    workers, scorer = opened(timeout_s=0.5, on_error="zero")
    scored = [one["reward"] for one in outcomes(workers, scorer, "ok", response, "fine")]
    assert [score.value for score in scored] == [2 / 3 + 1, 0.0, 4 / 3 + 1]
    assert words in scored[1].error


def test_a_response_whose_process_is_killed_is_scored_by_another(opened):
    workers, scorer = opened(1)
    found = [one["reward"] for one in outcomes(workers, scorer, "first", "dies once", "last")]
    assert [score.error for score in found] == [None] * 3
    assert [score.value for score in found] == [5 / 3 + 1, 9 / 3 + 1, 4 / 3 + 1]
    by = [score.metrics["by"] for score in found]
    assert by[0] != by[1] == by[2]


def test_a_call_that_heeds_no_limit_is_ended_with_its_process(opened, directory, monkeypatch):
    monkeypatch.setattr(module, "LATE_S", 0.2)
    workers, scorer = opened(1, timeout_s=0.3, on_error="zero")
    (found, after) = (one["reward"] for one in outcomes(workers, scorer, "stuck", "after"))
    assert found.value == 0.0 and "timeout_s = 0.3, and did not end" in found.error
    assert after.value == 5 / 3 + 1
    process = int((directory / "stuck").read_text())
    within(30, _gone, process)


def _gone(process):
    with suppress(ProcessLookupError):
        while os.kill(process, 0) is None:
            time.sleep(0.01)


def test_without_the_helper_calls_fail_and_say_so(opened):
    workers, scorer = opened(import_timeout_s=299)  # its own
    os.kill(workers._helper.process.pid, signal.SIGKILL)
    workers._helper.process.wait()
    (found,) = outcomes(workers, scorer, "x")
    assert "the process that scored it has ended twice" in str(found["reward"])


def test_a_file_that_does_not_import(tmp_path):
    (tmp_path / "reward.py").write_text("1 / 0")
    workers = Workers(RewardConfig(function=f"{tmp_path}/reward.py:score").calls())
    with pytest.raises(RewardError, match="cannot be imported: ZeroDivisionError"):
        workers.open(1)


def test_they_work_while_the_rank_does_something_else(opened):
    workers, scorer = opened(1)
    done = threading.Event()
    workers.score(scorer.functions, request("x"), 1).add_done_callback(lambda _: done.set())
    assert done.wait(30)


def config_of(processes, **more):
    train = {"kind": "reasoning_gym", "task": "chain_sum", "size": 3}
    rest = {"model": {"path": "m"}, "data": {"train": train}, "rollout": {"num_samples": 2}}
    runtime = {"reward_processes": processes}
    return parse_config({"name": "x", "recipe": "rl", "steps": 1, "runtime": runtime} | rest | more)


@pytest.mark.parametrize(
    "processes, cores, expected",
    [(None, 2, []), (None, 16, ["reward"]), (0, 16, []), (3, 2, ["reward"])],
)
def test_when_they_are_started(monkeypatch, processes, cores, expected):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)))
    assert [*calls_ahead(config_of(processes))] == expected


def test_functions_with_many_responses_under_way_stay_in_the_rank():
    reward = {"terms": {"a": {"function": "code"}, "b": {"function": "math"}}}
    assert [*calls_ahead(config_of(1, reward=reward))] == ["reward.terms.b"]
