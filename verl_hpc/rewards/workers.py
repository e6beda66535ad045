"""Processes that score responses for a rank."""

from __future__ import annotations

import os
import pickle
import socket
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import cache, partial
from typing import Any

from verl_hpc.config.reward import RewardConfig, is_called_by_the_rank
from verl_hpc.config.run import RunConfig
from verl_hpc.errors import DataError, RewardError, ScoreNotFiniteError, VerlHpcError
from verl_hpc.rewards.request import Request
from verl_hpc.rewards.scorer import FunctionScorer
from verl_hpc.rewards.scoring import Score, failed
from verl_hpc.runtime.helper_process import end_group, start_for_user
from verl_hpc.runtime.messages import receive, send_bytes

CORES_PER_PROCESS = 4
"""Cores of a rank for each process, if runtime.reward_processes is null."""
LATE_S = 15.0
"""Seconds after its time limit at which a call that ignores it is killed."""
_STARTS_WITHIN_S = 60.0
_LOST = "the process that scored it has ended twice; is the node out of memory?"
_LATE = "ran longer than timeout_s = {:g}, and did not end"
_RAISED: Mapping[str, type[VerlHpcError]] = {
    kind.__name__: kind for kind in (DataError, RewardError, ScoreNotFiniteError)
}

Outcome = Score | VerlHpcError
"""Outcome of one function for one response: its score, or the error it raises."""


class Workers:
    """Processes of a rank that call reward functions, one response at a time each.

    Args:
        calls: the functions, by the setting that names each.
    """

    def __init__(self, calls: Mapping[str, RewardConfig]) -> None:
        settings = {name: call.model_dump(mode="json") for name, call in calls.items()}
        self._helper = start_for_user("verl_hpc.rewards.worker", settings)
        self._imports_within_s = _STARTS_WITHIN_S + sum(c.import_timeout_s for c in calls.values())
        self._pool: ThreadPoolExecutor | None = None
        self._here = threading.local()

    def open(self, count: int) -> None:
        """Wait until the functions are imported, and use `count` processes from now on.

        Raises:
            RewardError: they cannot be imported.
        """
        if self._pool is None:
            who = "reward: the process that imports the functions"
            if failure := self._helper.failure(who, self._imports_within_s):
                raise RewardError(failure)
            self._pool = ThreadPoolExecutor(count, thread_name_prefix="verl_hpc-reward")

    def score(
        self, scorers: Sequence[FunctionScorer], request: Request, step: int
    ) -> Future[Mapping[str, Outcome]]:
        """Have a response scored as soon as a process is free.

        Args:
            scorers: functions of `calls`, not batched.
            request: the response.
            step: training step; the limit on printed characters starts anew with each.

        Returns: Outcomes by the functions' settings, which do not depend on the process or the
            time.
        """
        assert self._pool is not None, "open it first"
        return self._pool.submit(self._score, scorers, request, step)

    def close(self) -> None:
        """End all processes; none is asked any more."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
        self._helper.connection.close()
        self._helper.process.wait()

    def _score(
        self, scorers: Sequence[FunctionScorer], request: Request, step: int
    ) -> Mapping[str, Outcome]:
        names = [scorer.setting for scorer in scorers]
        try:
            job = pickle.dumps((step, names, _whole(request, scorers)))
        except DataError as error:
            return dict.fromkeys(names, error)
        longest_s = LATE_S + sum(scorer.config.timeout_s for scorer in scorers)
        reason = _LOST
        for _ in range(2):
            try:
                told = self._ask(job, longest_s)
                return {name: _outcome(one) for name, one in zip(names, told, strict=True)}
            except TimeoutError:
                reason = _LATE.format(longest_s - LATE_S)
                self._end()
                break
            except (EOFError, OSError):
                self._end()
        return {scorer.setting: _failed(scorer, request, reason) for scorer in scorers}

    def _ask(self, job: bytes, longest_s: float) -> Sequence[Mapping[str, Any]]:
        """Ask this thread's process, which is forked if there is none."""
        if not hasattr(self._here, "socket"):
            self._here.socket, self._here.process = self._helper.connect(), 0
            self._here.socket.settimeout(_STARTS_WITHIN_S)
            self._here.process = receive(self._here.socket)["process"]
        here: socket.socket = self._here.socket
        here.settimeout(longest_s)
        send_bytes(here, job)
        scores: Sequence[Mapping[str, Any]] = receive(here)["scores"]
        return scores

    def _end(self) -> None:
        """End this thread's process, with what it has started."""
        if not hasattr(self._here, "socket"):
            return
        self._here.socket.close()
        if self._here.process:
            end_group(self._here.process)
        del self._here.socket, self._here.process


def _whole(request: Request, scorers: Sequence[FunctionScorer]) -> Request:
    """Return a request for pickling, with the row's columns read if a function takes them.

    Raises:
        DataError: one of them cannot be read.
    """
    columns = request.columns() if any(scorer.takes_row for scorer in scorers) else {}
    return replace(request, columns=partial(dict, columns))


def _outcome(told: Mapping[str, Any]) -> Outcome:
    if "raises" in told:
        return _RAISED[told["raises"]](told["text"])
    return Score(**told)


def _failed(scorer: FunctionScorer, request: Request, reason: str) -> Outcome:
    try:
        return failed(scorer.config, scorer.setting, request, reason)
    except RewardError as error:
        return error


def calls_ahead(config: RunConfig) -> Mapping[str, RewardConfig]:
    """Return the reward functions that processes of a rank may call, by setting; empty if the rank
    calls them itself."""
    wanted = config.runtime.reward_processes
    is_small = len(os.sched_getaffinity(0)) < CORES_PER_PROCESS
    if not config.generates or wanted == 0 or (wanted is None and is_small):
        return {}
    calls = config.reward_calls.items()
    return {name: call for name, call in calls if not is_called_by_the_rank(call.function)}


def start_workers(calls: Mapping[str, RewardConfig]) -> Workers:
    """Return the workers of a run's functions, started once per process, before MPI if possible.

    Args:
        calls: result of `calls_ahead`.
    """
    return _started(tuple((name, call.model_dump_json()) for name, call in calls.items()))


@cache
def _started(calls: tuple[tuple[str, str], ...]) -> Workers:
    return Workers({name: RewardConfig.model_validate_json(call) for name, call in calls})
