"""Programs in responses, scored by the tests of their rows."""

import json

import pytest

from tests.unit.rewards.sandbox.conftest import sandbox_of
from verl_hpc.config.reward import RewardConfig
from verl_hpc.errors import RewardError, SandboxError
from verl_hpc.rewards.code_tests import read_cases
from verl_hpc.rewards.functions.code import VERDICTS, compute_scores
from verl_hpc.rewards.functions.code import Options as CodeOptions
from verl_hpc.rewards.registry import get_reward_function
from verl_hpc.rewards.request import Request
from verl_hpc.rewards.sandbox.containment import MIB, Limits
from verl_hpc.rewards.scoring import score_responses

LIMITS = Limits(timeout_s=5.0, cpu_s=2.0, memory_bytes=256 * MIB, tasks=16, output_bytes=4096)
DOUBLES = {"inputs": ["1\n", "2\n", "-5\n"], "outputs": ["2\n", "4\n", "-10\n"]}
HUMAN_EVAL = {
    "test": "def check(candidate):\n    assert candidate(2) == 4\n    assert candidate(0) == 0\n",
    "entry_point": "double",
}
JOINS = {"fn_name": "join", "inputs": ['[1]\n"x"'], "outputs": ['[[1], "x"]']}
CALLS = {"fn_name": "double", "inputs": [[1], [2]], "outputs": [[2], 4]}


def request(program, truth, fenced=True):
    response = f"So:\n```python\n{program}\n```\nDone." if fenced else program
    return Request(0, "code", truth, {}, response)


@pytest.fixture
def scores():
    """In a sandbox that every machine has; sandbox/test_sandbox.py tries both kinds."""
    sandbox = sandbox_of("limits", LIMITS)

    def of(*requests, **options):
        return compute_scores(requests, sandbox, CodeOptions(**options))

    return of


def verdict_of(score):
    """The one verdict that has a 1."""
    (verdict,) = [name for name in VERDICTS if score[f"code_{name}"]]
    return verdict


GOOD = "print(int(input()) * 2)"
NAPS = "import time\ntime.sleep(0.3)\nprint(2 * int(input()))"
RIGHT = [
    (GOOD, DOUBLES),
    (GOOD, json.dumps(DOUBLES)),
    ("print(float(input()) * 2, '')", DOUBLES),
    ("def double(x):\n    print('noise')\n    return 2 * x", HUMAN_EVAL),
    ("def double(x):\n    return 2 * x\nif __name__ == '__main__':\n    input()", HUMAN_EVAL),
    ("def double(x): return 2 * x", {"assert_case": ["assert double(1) == 2", "double(0)"]}),
    ("def double(x): return 2 * x", CALLS),
    ("class Solution:\n    def double(self, x): return 2 * x", json.dumps(CALLS)),
    ("def join(a, b): return (a, b)", JOINS),
]


@pytest.mark.parametrize(("program", "truth"), RIGHT)
def test_a_right_program_passes(scores, program, truth):
    (score,) = scores(request(program, truth))
    assert (score["score"], verdict_of(score), score["code_tests_passed"]) == (1.0, "passed", 1.0)


WRONG = [
    ("print(int(input()) + 1)", DOUBLES, "failed"),
    ("print(1 / 0)", DOUBLES, "failed"),
    ("def double(x): return x", HUMAN_EVAL, "failed"),
    ("def double(x): return x", CALLS, "failed"),
    ("def other(x): return 2 * x", CALLS, "failed"),
    ("def double(x): return {1, 2}", CALLS, "failed"),
    # Would pass if an early end were taken for the end.
    ("raise SystemExit(0)", CALLS, "failed"),
    ("print('true')\nexit(0)", HUMAN_EVAL, "failed"),
    ("def f(:", DOUBLES, "compile_error"),
    ("if 1:\nprint()", DOUBLES, "compile_error"),
    ("a = '\0'", CALLS, "compile_error"),
    ("exec('def f(:')", DOUBLES, "failed"),
    ("def double(x):\n    while True: pass", CALLS, "timed_out"),
    ("x = []\nwhile True: x.append(bytearray(10**7))", DOUBLES, "out_of_memory"),
    ("import os\nwhile True: os.fork()", DOUBLES, "too_many_processes"),
    ("while True: print('x' * 1000)", DOUBLES, "output_too_large"),
    ("import ctypes\nctypes.string_at(0)", DOUBLES, "killed"),
]


@pytest.mark.parametrize(("program", "truth", "verdict"), WRONG)
def test_what_goes_wrong_is_named(scores, program, truth, verdict):
    (score,) = scores(request(program, truth))
    assert (score["score"], verdict_of(score)) == (0.0, verdict)


@pytest.mark.parametrize(
    ("program", "options", "score", "verdict"),
    [
        ("print(2 if int(input()) == 1 else 0)", {"score": "share"}, 1 / 3, "failed"),
        ("print(2 if int(input()) == 1 else 0)", {}, 0.0, "failed"),
        ("x = int(input())\nassert x != 1\nprint(2 * x)", {"score": "share"}, 2 / 3, "failed"),
        (NAPS, {"score": "share", "total_s": 0.2}, 1 / 3, "timed_out"),
    ],
    ids=["one of three", "not all", "after the first verdict", "no time left"],
)
def test_a_share_of_the_tests_scores_where_that_is_wanted(scores, program, options, score, verdict):
    (scored,) = scores(request(program, DOUBLES), **options)
    assert (scored["score"], verdict_of(scored)) == (pytest.approx(score), verdict)


def test_scores_come_in_the_order_of_the_responses(scores):
    programs = [GOOD, "pass", GOOD, "x = = 1", GOOD]
    scored = scores(*[request(program, DOUBLES) for program in programs], max_concurrent=3)
    assert [score["score"] for score in scored] == [1, 0, 1, 0, 1]


@pytest.mark.parametrize(
    ("truth", "message"),
    [
        (None, "ground_truth = None has no tests"),
        ("72", "ground_truth = '72' has no tests"),
        ({}, "ground_truth has inputs = None; expected a list; its fields are"),
        ({"inputs": [], "outputs": []}, r"inputs = \[\]"),
        ({"inputs": ["1"], "outputs": []}, r"outputs = \[\]"),
        ({"inputs": ["1"], "outputs": ["1", "2"]}, "1 inputs and 2 outputs"),
        ({"assert_case": [1]}, r"assert_case = \[1\]"),
        ({"fn_name": "f", "inputs": [3], "outputs": [3]}, "input 3; expected a list"),
    ],
)
def test_a_row_without_tests_is_named(truth, message):
    with pytest.raises(RewardError, match=message):
        read_cases(truth)


def test_a_row_without_tests_ends_the_run_with_its_name(scores):
    good, bad = scores(request(GOOD, DOUBLES), request(GOOD, "72"))
    assert good["score"] == 1.0 and isinstance(bad, RewardError)


def test_what_cannot_be_run_is_no_fault_of_the_program(monkeypatch):
    sandbox = sandbox_of("limits")
    monkeypatch.setattr(sandbox, "run", lambda *_: (_ for _ in ()).throw(SandboxError("no room")))
    (found,) = compute_scores([request(GOOD, DOUBLES)], sandbox, CodeOptions())
    assert isinstance(found, SandboxError)


def test_code_is_a_reward_function_by_name():
    options = {"score": "share", "cpu_s": 2.0, "memory_mib": 256}
    config = RewardConfig(function="code", options=options, timeout_s=0.01)
    function = get_reward_function(config)
    requests = [request(GOOD, DOUBLES), request("while True: pass", DOUBLES)]
    found = score_responses(function, requests, config)
    assert [score.value for score in found] == [1.0, 0.0]
    assert found[0].metrics["code_passed"] == found[1].metrics["code_timed_out"] == 1.0
