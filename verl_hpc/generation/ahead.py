"""Responses that are scored in processes of their own, while others are generated."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Mapping, Sequence
from concurrent.futures import Future

import torch

from verl_hpc.config.run import RunConfig
from verl_hpc.rewards.request import Request
from verl_hpc.rewards.scorer import Scorer
from verl_hpc.rewards.scoring import Score
from verl_hpc.rewards.workers import (
    CORES_PER_PROCESS,
    Outcome,
    Workers,
    calls_ahead,
    start_workers,
)

_MOST = 8


_Outcomes = Future[Mapping[str, Outcome]]
"""By the setting of each function that is asked about one response."""


class Ahead:
    """What a rank's processes have been asked, by what identifies a response.

    Args:
        workers: open.
    """

    def __init__(self, workers: Workers) -> None:
        self._workers = workers
        self._begun: dict[Hashable, deque[tuple[int, _Outcomes]]] = {}

    def begin(self, key: Hashable, scorer: Scorer, request: Request, step: int) -> None:
        """Have a response of a step scored, as far as functions are asked about one response.

        Args:
            key: equal for responses that are scored alike.
        """
        found = self._ask(scorer, request, step)
        self._begun.setdefault(key, deque()).append((step, found))

    def forget_before(self, step: int) -> None:
        """Nobody asks for responses of earlier steps any more."""
        left = {k: deque(b for b in begun if b[0] >= step) for k, begun in self._begun.items()}
        self._begun = {key: begun for key, begun in left.items() if begun}

    def scores(
        self, scorer: Scorer, keys: Sequence[Hashable], requests: Sequence[Request], step: int
    ) -> list[Score]:
        """Of all responses of a step, also of those that are not begun.

        Raises:
            RewardError, DataError: as `score_responses`; of several the first function's, of its
                first response.
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
    found = outcomes.result()[setting]
    if isinstance(found, Score):
        return found
    raise found


def open_ahead(config: RunConfig) -> Ahead | None:
    """The processes of a rank that has its threads.

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
    return Ahead(workers)
