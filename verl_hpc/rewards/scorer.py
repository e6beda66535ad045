"""What a run scores with: one function, or a weighted sum of several."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from verl_hpc.config.reward import RewardConfig
from verl_hpc.rewards.registry import get_reward_function
from verl_hpc.rewards.request import Request, RewardFunction
from verl_hpc.rewards.scoring import Score, score_responses


@dataclass(frozen=True)
class FunctionScorer:
    """One function."""

    function: RewardFunction
    config: RewardConfig
    setting: str = "reward"

    def __call__(self, requests: Sequence[Request]) -> list[Score]:
        """As `score_responses`."""
        return score_responses(self.function, requests, self.config, self.setting)


@dataclass(frozen=True)
class Term:
    """One part of a sum."""

    name: str
    weight: float
    scorer: FunctionScorer


@dataclass(frozen=True)
class SumScorer:
    """A score is the sum of weight times score of all terms.

    Every term's own score is the metric of its name, its further numbers NAME/METRIC. A term that
    fails, and may, counts 0; NAME/failed is 1 then, and the response counts as one that failed.
    """

    terms: Sequence[Term]

    def __call__(self, requests: Sequence[Request]) -> list[Score]:
        """As `score_responses`."""
        by_term = [term.scorer(requests) for term in self.terms]
        return [self._sum(scores) for scores in zip(*by_term, strict=True)]

    def _sum(self, scores: Sequence[Score]) -> Score:
        metrics: dict[str, float] = {}
        errors = []
        for term, score in zip(self.terms, scores, strict=True):
            metrics |= {f"{term.name}/{name}": value for name, value in score.metrics.items()}
            metrics[term.name] = score.value
            metrics[f"{term.name}/failed"] = float(score.error is not None)
            errors += [f"{term.name}: {score.error}"] if score.error is not None else []
        value = sum(t.weight * s.value for t, s in zip(self.terms, scores, strict=True))
        return Score(value, metrics, "; ".join(errors) or None)


Scorer = FunctionScorer | SumScorer


def make_scorer(config: RewardConfig, setting: str = "reward") -> Scorer:
    """Load the functions that a configuration names.

    Args:
        setting: that it is of, for messages.

    Raises:
        RewardError: as `get_reward_function`.
    """
    scorers = [
        FunctionScorer(get_reward_function(call, name), call, name)
        for name, call in config.calls(setting).items()
    ]
    if not config.terms:
        return scorers[0]
    terms = zip(config.terms.items(), scorers, strict=True)
    return SumScorer([Term(name, term.weight, scorer) for (name, term), scorer in terms])
