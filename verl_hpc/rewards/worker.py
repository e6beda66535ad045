"""The process that scores for a rank: `python -m verl_hpc.rewards.worker FD`.

It imports the reward functions and forks the processes that call them. Whatever a function, or a
fault in native code, does to its process, the rank is unharmed.
"""

from __future__ import annotations

import os
import pickle
import signal
import socket
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict
from functools import partial
from typing import Any

from verl_hpc.config.reward import RewardConfig
from verl_hpc.errors import DataError, RewardError, VerlHpcError
from verl_hpc.rewards.printing import capped_output
from verl_hpc.rewards.registry import get_reward_function
from verl_hpc.rewards.request import Request
from verl_hpc.rewards.sandbox.processes import end_all
from verl_hpc.rewards.scorer import FunctionScorer
from verl_hpc.runtime.children import adopt_orphans
from verl_hpc.runtime.helper_process import serve
from verl_hpc.runtime.messages import receive, receive_bytes, send


def main(patrons: socket.socket) -> None:
    """Load the functions, report success or failure, and serve ranks' threads."""
    calls = {n: RewardConfig.model_validate(call) for n, call in receive(patrons).items()}
    try:
        scorers = {
            name: FunctionScorer(get_reward_function(call, name), call, name)
            for name, call in calls.items()
        }
    except VerlHpcError as error:
        send(patrons, {"failure": str(error)})
        return
    send(patrons, {"failure": ""})
    # Orphans of functions become children of this process.
    adopt_orphans()
    serve(patrons, partial(answer, scorers))
    end_all(os.getpid())


def answer(scorers: Mapping[str, FunctionScorer], patron: socket.socket) -> None:
    """Score responses, one after another, until the connection closes."""
    # Processes that functions start are in this group, and end with it.
    os.setsid()
    # Some sites warn all processes of a job, and the rank needs this one until its step ends.
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    try:
        send(patron, {"process": os.getpid()})
        _answer_all(scorers, patron)
    finally:
        os.killpg(0, signal.SIGKILL)


def _answer_all(scorers: Mapping[str, FunctionScorer], patron: socket.socket) -> None:
    step = None
    with ExitStack() as printing:
        while True:
            try:
                # The pickle comes from the rank that started this process; answers are JSON.
                asked, names, request = pickle.loads(receive_bytes(patron))  # noqa: S301
            except EOFError:
                return
            if asked != step:
                printing.close()
                printing.enter_context(capped_output("what scores responses"))
                step = asked
            send(patron, {"scores": [_score(scorers[name], request) for name in names]})


def _score(scorer: FunctionScorer, request: Request) -> dict[str, Any]:
    try:
        (score,) = scorer([request])
    except (RewardError, DataError) as error:
        return {"raises": type(error).__name__, "text": str(error)}
    return asdict(score)


if __name__ == "__main__":
    main(socket.socket(fileno=int(sys.argv[1])))
