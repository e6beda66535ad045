"""Scorers of a run: one function, or a weighted sum of several."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass

from verl_hpc.config.reward import RewardConfig
from verl_hpc.rewards.registry import get_reward_function
from verl_hpc.rewards.request import Request, RewardFunction, is_batched, taken
from verl_hpc.rewards.scoring import Score, score_responses


@dataclass(frozen=True)
class FunctionScorer:
    """A scorer that calls one function."""

    function: RewardFunction
    config: RewardConfig
    setting: str = "reward"

    def __call__(self, requests: Sequence[Request]) -> list[Score]:
        """Score responses with `score_responses`."""
        return score_responses(self.function, requests, self.config, self.setting)

    @property
    def functions(self) -> Sequence[FunctionScorer]:
        """All that are called."""
        return [self]

    def combined(self, by_function: Sequence[Sequence[Score]]) -> list[Score]:
        """Scores of responses from those of each of `functions`."""
        (scores,) = by_function
        return list(scores)

    @property
    def is_batched(self) -> bool:
        """Whether the function is called with all responses of a rank."""
        return is_batched(self.function)

    @property
    def takes_row(self) -> bool:
        """Whether the function gets all columns of the row."""
        return "row" in taken(self.function)


@dataclass(frozen=True)
class Term:
    """One part of a sum."""

    name: str
    weight: float
    scorer: FunctionScorer


@dataclass(frozen=True)
class SumScorer:
    """A scorer that sums weight times score over all terms, also for the reward of each token.

    Every term's own score is the metric of its name, its further numbers NAME/METRIC. A term that
    fails, and may, counts 0; NAME/failed is 1 then, and the response counts as one that failed.
    """

    terms: Sequence[Term]

    def __call__(self, requests: Sequence[Request]) -> list[Score]:
        """Score responses with all terms, and combine the scores."""
        return self.combined([function(requests) for function in self.functions])

    @property
    def functions(self) -> Sequence[FunctionScorer]:
        """All that are called."""
        return [term.scorer for term in self.terms]

    def combined(self, by_function: Sequence[Sequence[Score]]) -> list[Score]:
        """Scores of responses from those of each of `functions`."""
        return [self._sum(scores) for scores in zip(*by_function, strict=True)]

    def _sum(self, scores: Sequence[Score]) -> Score:
        metrics: dict[str, float] = {}
        errors = []
        for term, score in zip(self.terms, scores, strict=True):
            metrics |= {f"{term.name}/{name}": value for name, value in score.metrics.items()}
            metrics[term.name] = score.value
            metrics[f"{term.name}/failed"] = float(score.error is not None)
            errors += [f"{term.name}: {score.error}"] if score.error is not None else []
        value = sum(t.weight * s.value for t, s in zip(self.terms, scores, strict=True))
        return Score(value, metrics, "; ".join(errors) or None, self._per_token(scores))

    def _per_token(self, scores: Sequence[Score]) -> list[float]:
        """Return the weighted sum of the terms' token rewards; empty if no term has any."""
        pairs = zip(self.terms, scores, strict=True)
        listed = [(term.weight, score.per_token) for term, score in pairs if score.per_token]
        tokens = zip(*(rewards for _, rewards in listed), strict=True)
        weights = [weight for weight, _ in listed]
        return [math.fsum(map(operator.mul, weights, of_one)) for of_one in tokens]


Scorer = FunctionScorer | SumScorer


def make_scorer(config: RewardConfig, setting: str = "reward") -> Scorer:
    """Load the functions that a configuration names.

    Args:
        setting: the setting that holds it, for messages.

    Raises:
        RewardError: for the reasons of `get_reward_function`.
    """
    scorers = [
        FunctionScorer(get_reward_function(call, name), call, name)
        for name, call in config.calls(setting).items()
    ]
    if not config.terms:
        return scorers[0]
    terms = zip(config.terms.items(), scorers, strict=True)
    return SumScorer([Term(name, term.weight, scorer) for (name, term), scorer in terms])
