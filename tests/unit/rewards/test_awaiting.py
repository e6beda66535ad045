"""Reward functions that are awaited."""

import asyncio
import sys
import time
from functools import partial, wraps

import pytest

from verl_hpc.config.reward import RewardConfig
from verl_hpc.errors import RewardError
from verl_hpc.rewards import awaiting
from verl_hpc.rewards.registry import fitted
from verl_hpc.rewards.request import Request, batched
from verl_hpc.rewards.scoring import Score, score_responses


async def length(data_source, solution_str, ground_truth, extra_info=None, unit=1):
    await asyncio.sleep(0)
    return {"score": len(solution_str) / unit, "seen": 1}


class Judge:
    async def __call__(self, solution_str, ground_truth):
        return await length("", solution_str, ground_truth)


def decorated(function):
    @wraps(function)
    def wrapper(*args, **kwargs):
        return function(*args, **kwargs)

    return wrapper


@batched
async def of_all(requests):
    return [await length("", r.response, "") for r in requests]


def scores(function, *responses, options=None, **settings):
    config = RewardConfig(function="mine.py:f", options=options or {}, **settings)
    requests = [Request(i, "", "", {}, text) for i, text in enumerate(responses)]
    return score_responses(fitted(function, config, "reward"), requests, config)


@pytest.mark.parametrize(
    "function",
    [length, partial(length, unit=1), Judge(), decorated(length), of_all],
    ids=["async", "partial", "object", "decorated", "batched"],
)
def test_all_that_is_to_be_awaited_is(function):
    assert scores(function, "aa", "", "a") == [Score(n, {"seen": 1.0}) for n in (2.0, 0.0, 1.0)]


def test_options_and_two_arguments():
    async def two(response, truth, scale):
        return scale * len(response)

    assert scores(length, "aa", options={"unit": 4})[0].value == 0.5
    assert scores(two, "aa", options={"scale": 3})[0].value == 6.0


def test_calls_are_under_way_together_up_to_a_bound(monkeypatch):
    monkeypatch.setattr(awaiting, "MOST_AT_ONCE", 3)
    now, most = 0, 0

    async def counting(solution_str, ground_truth):
        nonlocal now, most
        now += 1
        most = max(most, now)
        await asyncio.sleep(0.01)
        now -= 1
        return 1.0

    assert len(scores(counting, *"abcdefg")) == 7
    assert most == 3


def failing(how):
    async def function(solution_str, ground_truth):
        if solution_str == "bad":
            await how()
        return 1.0

    return function


async def raises():
    raise ValueError("no answer")


async def leaves():
    sys.exit(3)


async def is_late():
    await asyncio.sleep(60)


async def is_cancelled():
    raise asyncio.CancelledError("no")


async def its_own_is_late():
    async with asyncio.timeout(0.01):
        await asyncio.sleep(60)


FAILURES = [
    (raises, "ValueError: no answer"),
    (leaves, r"it calls sys\.exit\(3\)"),
    (is_late, r"ran longer than timeout_s = 0\.3"),
    (is_cancelled, "CancelledError: no"),
    (its_own_is_late, "TimeoutError"),
]


@pytest.mark.parametrize(("how", "message"), FAILURES)
def test_a_failure_names_its_row_and_is_of_one_response(how, message):
    with pytest.raises(RewardError, match=f"row 1, response 'bad': {message}"):
        scores(failing(how), "a", "bad", "b", timeout_s=0.3)
    scored = scores(failing(how), "a", "bad", "b", timeout_s=0.3, on_error="zero")
    assert [(s.value, bool(s.error)) for s in scored] == [(1, False), (0, True), (1, False)]


@pytest.mark.parametrize(("how", "message"), FAILURES)
def test_a_plain_function_that_gives_a_coroutine_fails_alike(how, message, no_alarm):
    function = decorated(failing(how))
    with pytest.raises(RewardError, match=f"row 1, response 'bad': {message}"):
        scores(function, "a", "bad", timeout_s=0.3)
    assert scores(function, "a", timeout_s=30.0) == [Score(1.0)]


def test_what_it_keeps_between_calls_finds_its_loop_again():
    """A client of httpx or openai does not work in another loop than its first."""
    loops = set()

    async def keeping(solution_str, ground_truth):
        loops.add(asyncio.get_running_loop())
        return 1.0

    scores(keeping, "a", "b")
    scores(decorated(failing(is_late)), "bad", timeout_s=0.05, on_error="zero")
    scores(keeping, "c")
    assert len(loops) == 1


def test_it_is_called_from_a_running_loop_as_in_a_notebook():
    async def cell():
        return scores(length, "aa")

    assert asyncio.run(cell()) == [Score(2.0, {"seen": 1.0})]


def test_one_that_holds_the_loop_is_told_so(monkeypatch):
    monkeypatch.setattr(awaiting, "_STUCK_S", 0.2)

    async def holds():
        time.sleep(2)

    with pytest.raises(RewardError, match="holds its event loop.*a function without async"):
        scores(failing(holds), "bad", timeout_s=0.1)
