"""Score responses with the reward function, each rank its share."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, compress, islice
from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from verl_hpc.data.mixed import MixedSource
from verl_hpc.generation.ahead import AsyncScorer
from verl_hpc.generation.answers import Answer
from verl_hpc.metrics.names import SCORE, SET
from verl_hpc.rewards.request import Request
from verl_hpc.rewards.scorer import Scorer
from verl_hpc.rewards.scoring import Score
from verl_hpc.step.batch import MASK, PROGRAM_REWARDS, Columns, Samples, Scores, StepRows
from verl_hpc.step.operator import Metrics, operator
from verl_hpc.step.placement import Placement
from verl_hpc.step.problems import StepProblems

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_logger = logging.getLogger(__name__)

_MOST_REASONS = 3
_MOST_TEXT = 300


@dataclass(frozen=True)
class ScoreSettings:
    """The scorer, and its inputs."""

    scorer: Scorer
    tokenizer: PreTrainedTokenizerBase
    problems: StepProblems
    ahead: AsyncScorer | None = None
    """Worker processes that score; None if the rank scores one response after another."""
    stop: Sequence[str] = ()
    """Stop strings."""
    run: str = ""
    """The run's name."""

    def begin(self, answer: Answer, step: int) -> None:
        """Start scoring a response, ahead of `scores`."""
        assert self.ahead is not None
        self.ahead.begin(self._key(answer), self.scorer, self._request(answer), step)

    def scores(self, answers: Sequence[Answer], step: int) -> list[Score]:
        """Return the scores of all responses of a step that this rank scores.

        Raises:
            RewardError, DataError: see `score_responses`.
        """
        requests = [*map(self._request, answers)]
        if self.ahead is None:
            return self.scorer(requests)
        return self.ahead.scores(self.scorer, [*map(self._key, answers)], requests, step)

    def _request(self, answer: Answer) -> Request:
        return replace(answer.request(self.tokenizer, self.stop), experiment_name=self.run)

    def _key(self, answer: Answer) -> Hashable:
        return id(self.problems), id(self.scorer), answer.key


def by_prompt(samples: Samples, scores: Scores) -> dict[int, list[float]]:
    """Return each group's scores, in the order of samples."""
    by_group: dict[int, list[float]] = {}
    for sample, value in zip(samples, scores.values, strict=True):
        by_group.setdefault(sample.group, []).append(value)
    return by_group


def tells_apart(samples: Samples, scores: Scores) -> dict[int, bool]:
    """Return for each group whether its responses differ in score."""
    return {group: len({*values}) > 1 for group, values in by_prompt(samples, scores).items()}


@operator("scores", shared=("scores",))
def score(
    place: Placement, settings: ScoreSettings, rows: StepRows, samples: Samples, sequences: Columns
) -> tuple[Scores, Metrics]:
    """Score every sample; ranks with the same samples share the work.

    Raises:
        RewardError: on every rank, if a call failed on one rank and reward.on_error is stop.
    """
    written = sequences.values.get(PROGRAM_REWARDS) or [None] * len(sequences.positions)
    whole = zip(
        sequences.positions, sequences.responses(samples), sequences[MASK], written, strict=True
    )
    mine = [part for part in whole if is_mine(place, samples.samples[part[0]].index)]
    positions = [i for i, *_ in mine]

    def run() -> list[Score]:
        problems = settings.problems.read([rows.rows[samples.samples[i].group] for i in positions])
        answers = [
            Answer(
                *(p, (*tokens.tolist(),), (*mask.tolist(),), samples.samples[i].truncated),
                rewards=None if rewards is None else _written(rewards),
            )
            for p, (i, tokens, mask, rewards) in zip(problems, mine, strict=True)
        ]
        return settings.scores(answers, rows.step)

    scores = gather_scores(place, positions, place.control.together(run), len(samples))
    return scores, scores.metrics


def _written(rewards: torch.Tensor) -> tuple[float, ...] | None:
    """Return a row of PROGRAM_REWARDS; None if the program wrote none."""
    return None if rewards.isnan().any() else tuple(rewards.tolist())


@operator()
def score_sets(
    place: Placement, mix: MixedSource, rows: StepRows, samples: Samples, scores: Scores
) -> tuple[tuple[()], Metrics]:
    """Tell the mean score of each data set of a mix, and how many of the step's prompts are its."""
    values: dict[str, list[float]] = {}
    for group, of_group in by_prompt(samples, scores).items():
        values.setdefault(mix.set_of(rows.rows[group]), []).extend(of_group)
    prompts = Counter(map(mix.set_of, rows.rows))
    metrics = {f"{SET}{name}/prompts": float(count) for name, count in prompts.items()}
    means = {f"{SET}{name}/{SCORE}": fmean(of_set) for name, of_set in values.items()}
    return (), metrics | means


def is_mine(place: Placement, index: int) -> bool:
    """Whether this rank, among those that have a sample, scores it.

    Args:
        place: placement that scores.
        index: the sample's index in its step.
    """
    return index % len(place.group) == place.group.index(place.rank)


def gather_scores(
    place: Placement, positions: Sequence[int], mine: Sequence[Score], count: int
) -> Scores:
    """Gather the scores of all samples from the ranks that scored them.

    Args:
        positions: the samples that this rank scored.
        mine: this rank's scores.
        count: number of all samples.
    """
    scores = dict(zip(positions, mine, strict=True))
    listed = {i: per_token_of(score) for i, score in scores.items() if any(score.per_token)}
    if len(place.ranks) > 1:
        scores, listed = _gathered(place, scores, listed)
    assert len(scores) == count
    ordered = [scores[position] for position in range(count)]
    num_failed = sum(score.error is not None for score in ordered)
    if num_failed:
        reasons = some_reasons(s.error for s in mine if s.error is not None)
        of_ranks = place.control.gather(reasons)
        if place.leads:
            reasons = some_reasons(chain.from_iterable(of_ranks))
            _logger.warning(
                "%d of %d rewards failed and are 0: %s", num_failed, count, "; ".join(reasons)
            )
    details = [score.metrics for score in ordered]
    return Scores([s.value for s in ordered], num_failed, details, listed)


def _gathered(
    place: Placement, mine: Mapping[int, Score], listed: Mapping[int, Mapping[int, float]]
) -> tuple[dict[int, Score], dict[int, dict[int, float]]]:
    """Return the scores of all samples by position, and `Scores.per_token`. The error of another
    rank's score is empty. Rewards of tokens are sent only if some function returned a list."""
    known = {name for score in mine.values() for name in score.metrics}
    known = place.control.merge(known, lambda one, other: one | other)
    names = sorted(known)
    rows = place.gather_rows(score_rows([*mine], [*mine.values()], names))
    scores = {}
    for position, value, failed, _, has, numbers in rows.tolist():
        metrics = dict(compress(zip(names, numbers.tolist(), strict=True), has.tolist()))
        scores[position] = Score(value, metrics, "" if failed else None)
    per_token: dict[int, dict[int, float]] = {}
    if rows["listed"].any():
        sent = [(i, token, value) for i, row in listed.items() for token, value in row.items()]
        dtype = [("position", "<i4"), ("place", "<i4"), ("value", "<f8")]
        for position, token, value in place.gather_rows(np.array(sent, dtype)).tolist():
            per_token.setdefault(position, {})[token] = value
    return scores, per_token


def per_token_of(score: Score) -> dict[int, float]:
    """Return the non-zero rewards of tokens, by index."""
    return {place: value for place, value in enumerate(score.per_token) if value}


def score_rows(positions: Sequence[int], scores: Sequence[Score], names: Sequence[str]) -> Any:
    """Convert scores to (n,) rows of a structured dtype, to send between ranks: 14 bytes, plus 9
    for each further number in `names`."""
    size = (len(names),)
    dtype = [("position", "<i4"), ("value", "<f8"), ("failed", "?"), ("listed", "?")]
    rows: Any = np.zeros(len(positions), [*dtype, ("has", "?", size), ("numbers", "<f8", size)])
    rows["position"] = positions
    rows["value"] = [score.value for score in scores]
    rows["failed"] = [score.error is not None for score in scores]
    rows["listed"] = [any(score.per_token) for score in scores]
    for place, name in enumerate(names):
        rows["has"][:, place] = [name in score.metrics for score in scores]
        rows["numbers"][:, place] = [score.metrics.get(name, 0.0) for score in scores]
    return rows


def some_reasons(reasons: Iterable[str]) -> list[str]:
    """Return the first few distinct reasons, truncated: thousands of them would send megabytes to
    every rank."""
    different = dict.fromkeys(reason[:_MOST_TEXT] for reason in reasons)
    return list(islice(different, _MOST_REASONS))
