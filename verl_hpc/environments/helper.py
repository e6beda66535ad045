"""The process that conversations are forked from: `python -m verl_hpc.environments.helper FD`.

It imports the environment's class and makes one environment. Each conversation has a process of its
own, with a copy of it, so that a step may take long, raise, exit or be ended without any effect on
the others.
"""

from __future__ import annotations

import importlib
import pickle
import socket
import sys
from contextlib import suppress
from typing import Any

from verl_hpc.config.environment import EnvironmentConfig
from verl_hpc.data.problem import Problem
from verl_hpc.environments.environment import Done, Environment
from verl_hpc.errors import ConfigError
from verl_hpc.rewards.guard import capped_output, describe, guarded
from verl_hpc.rewards.user_code import load_class, loading
from verl_hpc.runtime.helper_process import serve_made
from verl_hpc.runtime.limit import TimeLimitExceeded
from verl_hpc.runtime.messages import receive, receive_bytes, send
from verl_hpc.section import is_own

_CLASSES = {"calculator": "Calculator", "python": "Python", "reasoning_gym": "ReasoningGym"}
"""The class in the module of each name."""


def environment_of(config: EnvironmentConfig) -> Environment:
    """Make the environment from which those of responses are copied.

    Raises:
        ConfigError: no such file or class, or a class that does not take the options, or not
            within import_timeout_s.
    """
    setting, limit = "rollout.environment.name", config.import_timeout_s
    if is_own(config.name):
        kind = load_class(config.name, Environment, limit, setting, ConfigError)
    else:
        # Each brings what the others do not need.
        module = importlib.import_module(f"verl_hpc.environments.{config.name}")
        kind = getattr(module, _CLASSES[config.name])
    failure = f"{setting} = {config.name} with rollout.environment.options = {config.options}"
    with loading(failure, limit, ConfigError):
        return kind(**config.options)


_LONGEST_TEXT = 2**20
"""Most characters of an observation: far more than fit into a response."""


def make(settings: Any) -> tuple[EnvironmentConfig, Environment]:
    """Return the environment, with its settings."""
    config = EnvironmentConfig.model_validate(settings)
    return config, environment_of(config)


def converse(made: tuple[EnvironmentConfig, Environment], patron: socket.socket) -> None:
    """Serve one conversation: receive a problem, then answer each turn of the model until the other
    side closes the connection."""
    config, environment = made
    # The pickle comes from the rank that started this process; answers to it are JSON.
    problem: Problem = pickle.loads(receive_bytes(patron))  # noqa: S301
    is_reset = False
    while True:
        try:
            turn = receive(patron)
        except EOFError:
            return
        try:
            who = f"rollout.environment.name = {config.name}, {problem.where}"
            with capped_output(who), guarded(config.timeout_s):
                if not is_reset:
                    environment.reset(problem)
                    is_reset = True
                answer = {"said": _checked(environment.step(turn["tokens"], turn["text"]))}
        except TimeLimitExceeded:
            answer = {"failure": f"a step takes longer than timeout_s = {config.timeout_s:g}"}
        except BaseException as error:  # code of the user
            answer = {"failure": describe(error)}
        send(patron, answer)


def _checked(said: Any) -> str | None:
    if isinstance(said, Done):
        return None
    if not isinstance(said, str):
        raise TypeError(f"a step gives {type(said).__name__}; expected a text, or Done()")
    if not said:
        raise ValueError("a step says nothing: give a text with tokens, or Done()")
    if len(said) > _LONGEST_TEXT:
        raise ValueError(f"a step says {len(said):,} characters; at most {_LONGEST_TEXT:,}")
    return said


if __name__ == "__main__":
    with suppress(BrokenPipeError):  # its rank is gone, and has reported why
        serve_made(socket.socket(fileno=int(sys.argv[1])), make, converse)
