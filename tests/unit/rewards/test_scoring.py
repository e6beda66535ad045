"""Scores, and what a failing reward function does to a run."""

import asyncio
import contextlib
import io
import os
import re
import subprocess
import sys
import textwrap
import time
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch

from verl_hpc.config.reward import RewardConfig
from verl_hpc.errors import DataError, RewardError
from verl_hpc.rewards import guard
from verl_hpc.rewards.registry import get_reward_function
from verl_hpc.rewards.request import Request, batched
from verl_hpc.rewards.scoring import Score, score_responses
from verl_hpc.runtime.limit import TimeLimitExceeded


def request(response="out", index=0, **fields) -> Request:
    known = {"data_source": "mine", "ground_truth": "72", "extra": {"k": 1}}
    return Request(index=index, response=response, **known | fields)


def scores(function, *requests, **settings) -> list[Score]:
    return score_responses(function, requests, RewardConfig(function="mine.py:f", **settings))


def returning(value):
    return lambda **_: value


def raises(error):
    def function(**_):
        raise error

    return function


def raising(data_source, solution_str, ground_truth, extra_info):
    return 1 / 0


MORE = {
    "response_ids": [3, 4],
    "truncated": True,
    "row": {"level": 5},
    "prompt": [{"role": "user", "content": "1 + 1"}],
}
KNOWN = request("a", columns=lambda: MORE["row"], **{k: MORE[k] for k in MORE if k != "row"})


def test_a_function_of_any_keywords_is_given_all_and_may_change_them():
    calls = []

    def changing(**fields):
        calls.append({name: copy(fields[name]) for name in MORE})
        for name in ("row", "response_ids", "prompt", "extra_info"):
            fields[name].clear()
        return 1.0

    scores(changing, KNOWN, KNOWN)
    assert calls == [MORE, MORE] and KNOWN.extra == {"k": 1}


def test_a_row_is_read_for_functions_that_take_it_alone():
    def damaged():
        raise DataError("a.parquet row 3: damaged")

    unreadable = request(columns=damaged)
    assert scores(lambda solution_str, data_source, ground_truth, extra_info: 1.0, unreadable)
    with pytest.raises(DataError, match="row 3: damaged"):
        scores(lambda **_: 1.0, unreadable, on_error="zero")


def test_a_function_of_a_list_is_called_once():
    calls = []

    @batched
    def lengths(requests):
        calls.append(requests)
        return [{"score": len(r.response), "cut": r.truncated} for r in requests]

    both = [Score(2.0, {"cut": 0.0}), Score(1.0, {"cut": 1.0})]
    assert (scores(lengths, request("aa"), KNOWN), scores(lengths)) == (both, [])
    assert len(calls) == 1


def test_an_exception_in_the_list_fails_its_response_alone():
    @batched
    def second_fails(requests):
        return [1.0, ValueError("no answer"), 0.5]

    three = (request("a"), request("b", index=8), request("c"))
    as_zero = [Score(1.0), Score(0.0, error="ValueError: no answer"), Score(0.5)]
    assert scores(second_fails, *three, on_error="zero") == as_zero
    with pytest.raises(RewardError, match="row 8, response 'b': ValueError: no answer"):
        scores(second_fails, *three)


def test_a_list_that_does_not_fit_has_failed():
    for value, message in (
        ([1.0], r"TypeError: the result is list \(1\); expected a list of 2, one a response"),
        (1.0, r"the result is float \(no length\); expected a list of 2"),
        ([1.0, float("nan")], "the score is nan"),
        ([1.0, "x"], "the score is str 'x'"),
    ):
        with pytest.raises(RewardError, match=message):
            scores(batched(lambda requests, value=value: value), request(), request())


def test_a_function_of_a_list_has_as_long_for_each_response(no_alarm):
    @batched
    def naps(requests):
        time.sleep(0.3)
        return [1.0] * len(requests)

    assert len(scores(naps, *[request()] * 3, timeout_s=0.2)) == 3
    failed = scores(naps, request(), timeout_s=0.1, on_error="zero")
    assert failed == [Score(0.0, error="ran longer than timeout_s = 0.1")]


NUMBERS = [
    (1, 1.0),
    (True, 1.0),
    (Fraction(1, 2), 0.5),
    (Decimal("0.25"), 0.25),
    (np.bool_(True), 1.0),
    (np.float16(0.5), 0.5),
    (np.array(1.5), 1.5),
    (np.array([1.5]), 1.5),
    (torch.tensor(1.0), 1.0),
    (torch.tensor([0.5], dtype=torch.bfloat16), 0.5),
    (torch.tensor(False), 0.0),
]


def test_every_number_is_a_score_and_a_metric():
    for value, number in NUMBERS:
        assert scores(returning(value), request()) == [Score(number)]
        result = {"score": value, "acc": value}
        assert scores(returning(result), request()) == [Score(number, {"acc": number})]


def test_numbers_beside_a_score_are_metrics():
    result = {"score": 0.5, "acc": True, "length": 3, "pred": "72", "why": None}
    result |= {"several": np.ones(2), "words": np.array("x"), "phase": 1j}
    assert scores(returning(result), request()) == [Score(0.5, {"acc": 1.0, "length": 3.0})]


BAD_RESULTS = [
    (float("nan"), "the score is nan; expected a finite number"),
    (float("inf"), "the score is inf; expected a finite number"),
    (None, "the score is NoneType None; expected a number"),
    ("1.0", "the score is str '1.0'; expected a number"),
    (1j, "the score is complex 1j; expected a number"),
    (np.complex64(1), "the score is complex64"),
    (np.ones((2, 2)), "the score is ndarray"),
    (np.ones(2), "the score is a list of 2 numbers, and the response has 0 tokens"),
    (torch.ones(2), "the score is a list of 2 numbers, and the response has 0 tokens"),
    (torch.tensor(float("nan")), "the score is nan; expected a finite number"),
    (Decimal("inf"), "the score is inf; expected a finite number"),
    ((1.0, 2.0), "the score is a list of 2 numbers, and the response has 0 tokens"),
    ({"acc": 1.0}, "the result has no 'score'; it has acc"),
    ({"score": float("nan")}, "the score is nan"),
    ({"score": 1.0, 5: 1.0, "a": 2.0}, "the result has the key 5; keys are strings"),
]


FAILURES = [
    *((returning(value), message) for value, message in BAD_RESULTS),
    (raises(SystemExit(0)), r"it calls sys\.exit\(0\)"),
    (raises(SystemExit(3)), r"it calls sys\.exit\(3\)"),
    (raises(SystemExit(None)), r"it calls sys\.exit\(None\)"),
    (raises(asyncio.CancelledError("no")), "CancelledError: no"),
]


@pytest.mark.parametrize(("function", "message"), FAILURES)
def test_a_failure_ends_the_run_or_scores_zero_if_asked(function, message):
    with pytest.raises(RewardError, match=message):
        scores(function, request())
    (score,) = scores(function, request(), on_error="zero")
    assert (score.value, score.metrics) == (0.0, {}) and score.error


def test_an_exception_ends_the_run_and_says_where():
    with pytest.raises(
        RewardError,
        match=r"mine\.py:f, row 7, response 'x{90,99}: ZeroDivisionError: division by zero; "
        r"mend the function, or set reward\.on_error to zero",
    ) as caught:
        scores(raising, request("x" * 500, index=7))
    with pytest.raises(RewardError, match=r"mine\.py:f, data/a\.jsonl line 9, response 'out'"):
        scores(raising, request(index=7, origin="data/a.jsonl line 9"))
    frames = caught.value.__cause__.__traceback__
    while frames.tb_next:
        frames = frames.tb_next
    assert frames.tb_frame.f_code.co_name == "raising"


def test_an_exception_scores_zero_if_asked_and_others_stay():
    def sometimes(solution_str, **_):
        if solution_str == "bad":
            raise ValueError("bad response")
        return 1.0

    assert scores(sometimes, *map(request, ("a", "bad", "b")), on_error="zero") == [
        Score(1.0), Score(0.0, error="ValueError: bad response"), Score(1.0)
    ]  # fmt: skip


def test_an_interrupt_is_no_fault_of_the_function():
    with pytest.raises(KeyboardInterrupt):
        scores(raises(KeyboardInterrupt), request(), on_error="zero")


@pytest.mark.parametrize("kind", [ValueError, RewardError])
def test_a_long_message_is_cut(kind):
    with pytest.raises(RewardError, match=r"xxx\.\.\. \(2,000 of ") as caught:
        scores(raises(kind("x" * 5_000_000)), request())
    assert len(str(caught.value)) < 3000


@pytest.mark.parametrize("error", [KeyError, SystemExit, TimeLimitExceeded])
def test_an_exception_whose_text_cannot_be_read(error):
    class UnreadableError(Exception):
        def __str__(self):
            raise error

    message = f"UnreadableError: its text cannot be read ({error.__name__})"
    assert scores(raises(UnreadableError), request(), on_error="zero")[0].error == message


@pytest.mark.parametrize("kind", [Exception, SystemExit, RewardError])
def test_an_exception_whose_text_has_no_end(kind, monkeypatch, no_alarm):
    monkeypatch.setattr(guard, "_TEXT_TIMEOUT_S", 0.1)

    class Endless(kind):
        def __str__(self):
            time.sleep(60)

        code = property(__str__)

    start = time.monotonic()
    with pytest.raises(RewardError, match=r"its text cannot be read \(TimeLimitExceeded\)"):
        scores(raises(Endless), request())
    assert time.monotonic() - start < 30


def test_a_score_that_takes_too_long_to_read(no_alarm):
    class Endless(float):
        def __float__(self):
            time.sleep(60)

    for result in (Endless(1.0), {"score": 1.0, "other": Endless(1.0)}):
        with pytest.raises(RewardError, match=r"ran longer than timeout_s = 0\.1"):
            scores(returning(result), request(), timeout_s=0.1)


def in_a_process(body, **environment):
    """Scores one response in a Python of its own, whose output and status come back."""
    program = f"""
import os, subprocess, multiprocessing, sys
from verl_hpc.config.reward import RewardConfig
from verl_hpc.rewards.scoring import Request, score_responses

def function(**_):
{textwrap.indent(textwrap.dedent(body), "    ")}

config = RewardConfig(function="mine.py:f")
found = score_responses(function, [Request(0, "", "", {{}}, "")], config)
print("scored", found[0].value, flush=True)
"""
    variables = os.environ | environment
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=variables
    )


@pytest.mark.parametrize("how", ["return 1.0", "raise ValueError", "sys.exit(7)"])
def test_a_forked_child_does_not_come_back_as_a_second_rank(how):
    done = in_a_process(
        f"""
        child = os.fork()
        if child == 0:
            {how}
        return float(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    """,
        VERL_HPC_ATTEMPT="/runs/run/job/attempts/0",
    )
    if "exit" in how:  # it leaves by itself
        assert (done.stdout, done.stderr) == ("scored 7.0\n", "")
        return
    assert done.stdout == "scored 1.0\n", done.stderr
    assert re.match(r"[\d-]{10}T[\d:]{8} verl_hpc: process \d+, forked", done.stderr)
    assert done.stderr.count("forked by code of the user, came back from it") == 1
    assert "Traceback" not in done.stderr


def test_a_function_that_fails_leaves_directory_and_modes_as_they_were(tmp_path, monkeypatch):
    def changing(**_):
        os.chdir("gone")
        Path("../gone").rmdir()
        torch.set_grad_enabled(False)
        torch.set_default_dtype(torch.float64)
        raise ValueError

    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path)
    scores(changing, request(), on_error="zero")
    assert Path.cwd() == tmp_path
    assert torch.is_grad_enabled() and torch.get_default_dtype() == torch.float32


def test_a_gigabyte_of_output_is_cut_and_counted(capsys, caplog):
    piece = "x" * 2**20

    def loud(solution_str, **_):
        for _ in range(1024):
            print(piece, end="")
        sys.stderr.write("a word")
        return 1.0

    assert scores(loud, request()) == [Score(1.0)]
    out, err = capsys.readouterr()
    assert (out, err) == ("x" * 2**18, "a word")
    (record,) = caplog.records
    assert record.getMessage() == (
        "reward.function = mine.py:f has printed 1,073,741,824 characters to stdout; those after "
        "the first 262,144 are not logged"
    )
    print("after")
    assert capsys.readouterr().out == "after\n"


def test_a_function_may_put_a_stream_of_its_own_in_place(capsys):
    def redirecting(**_):
        with contextlib.redirect_stdout(io.StringIO()) as own:
            print("hidden")
        return float(len(own.getvalue()))

    assert scores(redirecting, request()) == [Score(7.0)]
    assert capsys.readouterr().out == ""


def test_programs_and_worker_processes_of_a_function_work():
    done = in_a_process("""
        said = subprocess.run(["echo", "2"], capture_output=True, text=True).stdout
        with multiprocessing.get_context("fork").Pool(2) as pool:
            return float(said) + sum(pool.map(abs, [-1, -2]))
    """)
    assert (done.stdout, done.stderr) == ("scored 5.0\n", "")


def test_a_call_that_takes_too_long_is_an_error_or_scores_zero_if_asked():
    start = time.monotonic()
    with pytest.raises(RewardError, match=r"row 2, .*ran longer than timeout_s = 0\.1"):
        scores(lambda **_: time.sleep(60), request(index=2), timeout_s=0.1)
    (score,) = scores(lambda **_: time.sleep(60), request(), timeout_s=0.1, on_error="zero")
    assert score == Score(0.0, error="ran longer than timeout_s = 0.1")
    assert time.monotonic() - start < 30


def test_the_limit_is_for_each_response_and_on_the_main_thread():
    def nap(**_):
        time.sleep(0.15)
        return 1.0

    assert scores(nap, *[request()] * 3, timeout_s=0.3) == [Score(1.0)] * 3
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(scores, nap, request(), timeout_s=0.01).result() == [Score(1.0)]


@pytest.mark.parametrize("on_error", ["stop", "zero"])
def test_rows_that_cannot_be_scored_at_all_end_the_run_in_any_case(on_error):
    config = RewardConfig(on_error=on_error)
    function = get_reward_function(config)
    with pytest.raises(RewardError, match=r"auto, row 3, .*data_source = 'mine' has no reward"):
        score_responses(function, [request(index=3)], config)
    without_truth = request(index=4, data_source="openai/gsm8k", ground_truth=None)
    with pytest.raises(RewardError, match=r"row 4, .*ground_truth = None is not a number"):
        score_responses(function, [without_truth], config)


def test_a_hard_answer_is_wrong_even_where_the_limit_is_short():
    config = RewardConfig(function="math", timeout_s=0.3)
    function = get_reward_function(config)
    # What it imports at its first call may take longer.
    function(r"\boxed{1}", "1")
    (score,) = score_responses(function, [request(r"\boxed{9^{9^{9^9}}}")], config)
    assert score == Score(0.0, {"no_answer": 0.0, "not_judged": 1.0})
