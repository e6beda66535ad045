"""The process that scores for a rank: `python -m verl_hpc.rewards.worker FD`.

It imports the reward functions and forks the processes that call them. Whatever a function, or a
fault in native code, does to its process, the rank is unharmed.
"""

from __future__ import annotations

import pickle
import socket
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict
from typing import Any

from verl_hpc.config.reward import RewardConfig
from verl_hpc.errors import DataError, RewardError
from verl_hpc.rewards.guard import capped_output
from verl_hpc.rewards.registry import get_reward_function
from verl_hpc.rewards.request import Request
from verl_hpc.rewards.scorer import FunctionScorer
from verl_hpc.runtime.helper_process import serve_made
from verl_hpc.runtime.messages import receive_bytes, send


def make(settings: Any) -> dict[str, FunctionScorer]:
    """Load the functions, by the setting that names each."""
    calls = {name: RewardConfig.model_validate(call) for name, call in settings.items()}
    return {
        name: FunctionScorer(get_reward_function(call, name), call, name)
        for name, call in calls.items()
    }


def answer(scorers: Mapping[str, FunctionScorer], patron: socket.socket) -> None:
    """Score responses, one after another, until the connection closes."""
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
    serve_made(socket.socket(fileno=int(sys.argv[1])), make, answer)
