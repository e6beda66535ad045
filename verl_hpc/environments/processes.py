"""Environments as a rank sees them: each conversation's is in a process of its own."""

from __future__ import annotations

import pickle
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache, partial

from verl_hpc.config.environment import EnvironmentConfig
from verl_hpc.data.problem import Problem
from verl_hpc.environments.environment import Done
from verl_hpc.errors import ConfigError
from verl_hpc.runtime.helper_process import Helper, end_group, start_for_user
from verl_hpc.runtime.messages import receive, send, send_bytes

LATE_S = 5.0
"""Seconds after its time limit at which a step that ignores it is killed."""
_STARTS_WITHIN_S = 60.0


class StepFailedError(Exception):
    """A step of an environment failed; the text says how."""


class Environments:
    """Makes environments for responses, each in a process of its own.

    Args:
        config: the class, its options and its limits.
    """

    def __init__(self, config: EnvironmentConfig) -> None:
        self._config = config
        settings = config.model_dump(mode="json")
        self._helper = start_for_user("verl_hpc.environments.helper", settings)
        self._is_ready = False

    def check(self) -> None:
        """Wait until the class is imported.

        Raises:
            ConfigError: it cannot be, or does not take its options.
        """
        if self._is_ready:
            return
        # The file is imported, and then the environment is made.
        longest_s = 2 * self._config.import_timeout_s + _STARTS_WITHIN_S
        who = f"rollout.environment.name = {self._config.name}: the process that imports it"
        if failure := self._helper.failure(who, longest_s):
            raise ConfigError(failure)
        self._is_ready = True

    def begin(self, problem: Problem) -> Conversation:
        """Start the environment of one response.

        Raises:
            StepFailedError: there is no process for it.
            DataError: a column of the problem cannot be read.
        """
        self.check()
        try:
            return Conversation(self._helper, problem, self._config.timeout_s)
        except OSError as error:
            raise StepFailedError(f"its process cannot be started ({error})") from error


class Conversation:
    """An environment, in a process that ends with it.

    Args:
        helper: process from which this one is forked.
        problem: the row that the model answers.
        timeout_s: longest that a step may take.

    Raises:
        OSError: the helper is gone.
    """

    def __init__(self, helper: Helper, problem: Problem, timeout_s: float) -> None:
        self._socket, self._process = helper.connect(), 0
        self._timeout_s = timeout_s
        self.deadline = 0.0
        """Latest end of the step under way, in seconds of `time.monotonic`."""
        send_bytes(self._socket, pickle.dumps(_whole(problem)))

    def fileno(self) -> int:
        """Readable when `answer` has something to read."""
        return self._socket.fileno()

    def tell(self, tokens: Sequence[int], text: str) -> None:
        """Send a turn of the model.

        Raises:
            StepFailedError: the process is gone.
        """
        self.deadline = time.monotonic() + self._timeout_s + LATE_S
        try:
            send(self._socket, {"tokens": list(tokens), "text": text})
        except OSError as error:
            raise StepFailedError("its process has ended") from error

    def answer(self) -> str | Done | None:
        """Return the observation for the turn, or Done; None if the answer is still to come.

        Raises:
            StepFailedError: the step failed, or the process has ended.
        """
        try:
            reply = receive(self._socket)
        except (EOFError, OSError) as error:
            raise StepFailedError("its process has ended") from error
        if "process" in reply:
            self._process = reply["process"]
            return None
        if "failure" in reply:
            raise StepFailedError(reply["failure"])
        return Done() if reply["said"] is None else str(reply["said"])

    def end(self) -> None:
        """End the process, with what it has started."""
        if not self._process:
            # It says its number before anything else.
            self._socket.settimeout(LATE_S)
            with suppress(StepFailedError):
                self.answer()
        self._socket.close()
        if self._process:
            end_group(self._process)


def _whole(problem: Problem) -> Problem:
    """Return the problem with the row's columns read, so that it can be pickled."""
    return replace(problem, columns=partial(dict, problem.columns()))


def start_environments(config: EnvironmentConfig) -> Environments:
    """Return a configuration's environments, started once per process, before MPI if possible."""
    return _started(config.model_dump_json())


@cache
def _started(config: str) -> Environments:
    return Environments(EnvironmentConfig.model_validate_json(config))
