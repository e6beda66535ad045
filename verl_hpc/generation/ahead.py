"""Score responses in separate processes while others are being generated."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Mapping, Sequence
from concurrent.futures import Future

import torch

from verl_hpc.config.run import RunConfig
from verl_hpc.rewards.request import Request
from verl_hpc.rewards.scorer import Scorer
from verl_hpc.rewards.scoring import Score
from verl_hpc.rewards.workers import CORES_PER_PROCESS, Outcome, Workers, calls_ahead, start_workers

_MOST = 8


_Outcomes = Future[Mapping[str, Outcome]]
"""Future of one response's outcomes, by the setting of each reward function called per response."""


class AsyncScorer:
    """The scoring requests that a rank's worker processes have, by a key of the response.

    Args:
        workers: started worker processes.
    """

    def __init__(self, workers: Workers) -> None:
        self._workers = workers
        self._begun: dict[Hashable, deque[tuple[int, _Outcomes]]] = {}

    def begin(self, key: Hashable, scorer: Scorer, request: Request, step: int) -> None:
        """Start scoring a response of a step with the functions that are called per response.

        Args:
            key: equal for responses with equal scores.
        """
        outcomes = self._ask(scorer, request, step)
        self._begun.setdefault(key, deque()).append((step, outcomes))

    def forget_before(self, step: int) -> None:
        """Drop the requests of earlier steps."""
        left = {k: deque(b for b in begun if b[0] >= step) for k, begun in self._begun.items()}
        self._begun = {key: begun for key, begun in left.items() if begun}

    def scores(
        self, scorer: Scorer, keys: Sequence[Hashable], requests: Sequence[Request], step: int
    ) -> list[Score]:
        """Return the scores of all responses of a step, including those not started yet.

        Raises:
            RewardError, DataError: see `score_responses`; the first function's error on its first
                response.
        """
        asked = [
            self._taken(key) or self._ask(scorer, request, step)
            for key, request in zip(keys, requests, strict=True)
        ]
        together = {f.setting: f(requests) for f in scorer.functions if f.is_batched}
        return scorer.combined(
            [
                together[f.setting] if f.is_batched else [_given(a, f.setting) for a in asked]
                for f in scorer.functions
            ]
        )

    def _ask(self, scorer: Scorer, request: Request, step: int) -> _Outcomes:
        alone = [function for function in scorer.functions if not function.is_batched]
        return self._workers.score(alone, request, step)

    def _taken(self, key: Hashable) -> _Outcomes | None:
        begun = self._begun.get(key)
        return begun.popleft()[1] if begun else None


def _given(outcomes: _Outcomes, setting: str) -> Score:
    """Raises: RewardError, DataError: calling the function raised it."""
    outcome = outcomes.result()[setting]
    if isinstance(outcome, Score):
        return outcome
    raise outcome


def open_ahead(config: RunConfig) -> AsyncScorer | None:
    """Start the scoring processes of a rank, after its threads are set.

    Raises:
        RewardError: they cannot import the reward functions.
    """
    calls, wanted = calls_ahead(config), config.runtime.reward_processes
    shared = min(torch.get_num_threads() // CORES_PER_PROCESS, _MOST)
    count = shared if wanted is None else wanted
    if not calls or not count:
        return None
    workers = start_workers(calls)
    workers.open(count)
    return AsyncScorer(workers)
