"""The process that conversations are forked from: `python -m verl_hpc.environments.helper FD`.

It imports the environment's class and makes one environment. Each conversation has a process of its
own, with a copy of it, so that a step may take long, raise, exit or be ended without any effect on
the others.
"""

from __future__ import annotations

import os
import pickle
import signal
import socket
import sys
from contextlib import suppress
from functools import partial
from typing import Any

from verl_hpc.config.environment import EnvironmentConfig
from verl_hpc.data.problem import Problem
from verl_hpc.environments.environment import Done, Environment
from verl_hpc.environments.registry import environment_of
from verl_hpc.errors import VerlHpcError
from verl_hpc.rewards.guard import describe, guarded
from verl_hpc.rewards.printing import capped_output
from verl_hpc.rewards.sandbox.processes import end_all
from verl_hpc.runtime.children import adopt_orphans
from verl_hpc.runtime.helper_process import serve
from verl_hpc.runtime.limit import TimeLimitExceeded
from verl_hpc.runtime.messages import receive, receive_bytes, send

_LONGEST_TEXT = 2**20
"""Most characters of an observation: far more than fit into a response."""


def main(patrons: socket.socket) -> None:
    """Make the environment, report success or failure, and serve conversations."""
    config = EnvironmentConfig.model_validate(receive(patrons))
    try:
        environment = environment_of(config)
    except VerlHpcError as error:
        send(patrons, {"failure": str(error)})
        return
    send(patrons, {"failure": ""})
    # What a step has started is below this process, whatever its parents do.
    adopt_orphans()
    serve(patrons, partial(converse, config, environment))
    end_all(os.getpid())


def converse(config: EnvironmentConfig, environment: Environment, patron: socket.socket) -> None:
    """Serve one conversation: receive a problem, then answer each turn of the model."""
    # Processes that its tools start are in its group, and end with it.
    os.setsid()
    try:
        send(patron, {"process": os.getpid()})
        _answer_turns(config, environment, patron)
    finally:
        os.killpg(0, signal.SIGKILL)


def _answer_turns(
    config: EnvironmentConfig, environment: Environment, patron: socket.socket
) -> None:
    """Answer turns until the other side closes the connection."""
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
        main(socket.socket(fileno=int(sys.argv[1])))
