"""Score the program in a response by the share of the row's tests that it passes."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal

from pydantic import Field

from verl_hpc.errors import RewardError, SandboxError
from verl_hpc.rewards.code_blocks import program_of
from verl_hpc.rewards.code_tests import Case, read_cases
from verl_hpc.rewards.request import Request, RewardFunction, bounded
from verl_hpc.rewards.sandbox.containment import MIB, Limits, Result
from verl_hpc.rewards.sandbox.sandbox import Sandbox
from verl_hpc.section import PathText, Positive, Seconds, Section

VERDICTS = (
    "passed",
    "failed",
    "compile_error",
    "timed_out",
    "out_of_memory",
    "too_many_processes",
    "output_too_large",
    "killed",
)
"""Verdicts on a response; all but the first are that of the first test that does not pass."""

_NOT_COMPILED = ("SyntaxError", "IndentationError", "TabError")


CALLED_BY_THE_RANK = True


class Options(Section):
    """Run the response's program, and compare what it does with the row's tests."""

    score: Literal["all", "share"] = "all"
    """all: 1 if every test passes, and the first that does not ends the work; share: the share of
    tests that pass."""
    containment: Literal["auto", "bubblewrap", "limits"] = "auto"
    """How programs are kept apart: bubblewrap has namespaces, limits only limits of resources and a
    filter of system calls (docs/rewards.md says what that does not contain), auto the first that
    works here."""
    python: PathText | None = None
    """Interpreter of the programs; null takes that of the run."""
    paths: list[PathText] = []
    """Directories besides those of the interpreter and the system that programs may read."""
    max_concurrent: Positive = 4
    """Programs that a rank runs at a time."""
    timeout_s: Seconds = 10.0
    """Longest that one program may run."""
    total_s: Seconds = 60.0
    """Longest that a response may take, all its tests together; the next one counts as timed out.
    In place of reward.timeout_s."""
    cpu_s: Seconds = 10.0
    """Processor time of a program."""
    memory_mib: Annotated[Positive, Field(ge=64)] = 1024
    """Memory of a program."""
    threads: Positive = 64
    """Threads of a program, which may start no other process."""
    files_mib: Positive = 64
    """Size of the program's directory, where it may write; with containment: limits of a file."""
    output_kib: Positive = 1024
    """Bytes that a program may print, to its output and as many to its error output."""


def make(options: Options) -> RewardFunction:
    """Make the reward function with its sandbox.

    Raises:
        RewardError: programs cannot be run here with these options.
    """
    limits = Limits(
        options.timeout_s,
        options.cpu_s,
        options.memory_mib * MIB,
        options.threads,
        options.files_mib * MIB,
        options.output_kib * 1024,
    )
    sandbox = Sandbox(
        limits, options.containment, options.max_concurrent, options.python, options.paths
    )
    return bounded(partial(compute_scores, sandbox=sandbox, options=options))


def compute_scores(
    requests: Sequence[Request], sandbox: Sandbox, options: Options
) -> list[dict[str, float] | Exception]:
    """Score responses, some at a time.

    Returns:
        For each a mapping of its score, the shares `code_VERDICT` (1 for its own, else 0),
        `code_tests_passed`, `code_not_fenced` (no block is the program), `code_not_closed` (its
        block has no end) and `code_bubblewrap`; SandboxError where nothing could be run, and
        RewardError where a row has no tests.
    """
    with ThreadPoolExecutor(options.max_concurrent) as pool:
        return list(pool.map(partial(_score, sandbox, options), requests))


@dataclass(frozen=True)
class _Outcome:
    verdict: str
    num_passed: int


def _score(sandbox: Sandbox, options: Options, request: Request) -> dict[str, float] | Exception:
    try:
        tests = read_cases(request.ground_truth)
        program = program_of(request.response, {name for test in tests for name in test.names})
        outcome = _run_tests(sandbox, options, program.text, tests)
    except (RewardError, SandboxError) as error:
        return error
    share = outcome.num_passed / len(tests)
    scores: dict[str, Any] = {f"code_{v}": float(v == outcome.verdict) for v in VERDICTS}
    scores["code_tests_passed"] = share
    scores["code_not_fenced"] = float(not program.fenced)
    scores["code_not_closed"] = float(program.fenced and not program.closed)
    scores["code_bubblewrap"] = float(sandbox.is_contained)
    return {"score": share if options.score == "share" else float(share == 1.0), **scores}


def _run_tests(sandbox: Sandbox, options: Options, program: str, tests: Sequence[Case]) -> _Outcome:
    deadline = time.monotonic() + options.total_s
    first, num_passed = "passed", 0
    for test in tests:
        if time.monotonic() > deadline:
            first = "timed_out" if first == "passed" else first
            break
        result = sandbox.run(*test.run_of(program))
        verdict = _verdict(test, result)
        num_passed += verdict == "passed"
        first = verdict if first == "passed" else first
        if first == "compile_error" or (first != "passed" and options.score == "all"):
            break
    return _Outcome(first, num_passed)


def _verdict(test: Case, result: Result) -> str:
    if result.ending != "exited":
        return result.ending
    if result.status:
        return "compile_error" if _is_uncompiled(result.stderr) else "failed"
    return "passed" if test.passes(result.stdout) else "failed"


def _is_uncompiled(stderr: str) -> bool:
    """Whether Python could not compile the program; errors that a program raises have a
    traceback."""
    last = stderr.rstrip().rpartition("\n")[2]
    return last.startswith(_NOT_COMPILED) and not stderr.startswith("Traceback")
