"""Responses to scores by the reward function, each rank its share."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import compress, groupby
from typing import TYPE_CHECKING, Any

import numpy as np

from verl_hpc.data.problem import Problem
from verl_hpc.errors import RewardError
from verl_hpc.rewards.request import Request, Turn
from verl_hpc.rewards.scorer import Scorer
from verl_hpc.rewards.scoring import Score
from verl_hpc.trainer.batch import MASK, Columns, Samples, StepRows
from verl_hpc.trainer.failures import agreed_reasons
from verl_hpc.trainer.metrics import spread
from verl_hpc.trainer.placement import Placement
from verl_hpc.trainer.problems import StepProblems
from verl_hpc.trainer.recipe import Metrics, operator

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ScoreSettings:
    """What scores, and what it is given."""

    scorer: Scorer
    tokenizer: PreTrainedTokenizerBase
    problems: StepProblems


@dataclass(frozen=True)
class Scores:
    """Scores of all samples of a step, the same on every rank."""

    values: Sequence[float]
    """By position."""
    num_failed: int = 0
    """Calls of the reward function that failed and scored 0."""
    extra: Mapping[str, float] | None = None
    """Means of further numbers that the reward function returned."""
    details: Sequence[Mapping[str, float]] = ()
    """By position, these numbers."""

    @property
    def metrics(self) -> dict[str, float]:
        found = spread("critic/score", self.values)
        found |= {f"reward/{name}": value for name, value in (self.extra or {}).items()}
        if self.num_failed:
            found["reward/num_failed"] = float(self.num_failed)
        return found


def by_prompt(samples: Samples, scores: Scores) -> dict[int, list[float]]:
    """The scores of the responses to each prompt, both in order, by its group."""
    found: dict[int, list[float]] = {}
    for sample, value in zip(samples, scores.values, strict=True):
        found.setdefault(sample.group, []).append(value)
    return found


def tells_apart(samples: Samples, scores: Scores) -> dict[int, bool]:
    """By prompt, whether its responses differ in score."""
    return {group: len({*values}) > 1 for group, values in by_prompt(samples, scores).items()}


@operator("scores", shared=("scores",))
def score(
    place: Placement,
    settings: ScoreSettings,
    rows: StepRows,
    samples: Samples,
    sequences: Columns,
) -> tuple[Scores, Metrics]:
    """Score every sample; ranks that have the same samples divide them.

    Raises:
        RewardError: on every rank, if a call failed on one and reward.on_error is stop.
    """
    member, size = place.group.index(place.rank), len(place.group)
    mine = slice(member, None, size)
    positions = list(sequences.positions)[mine]
    responses = [
        spans(tokens.tolist(), mask.tolist())
        for tokens, mask in zip(
            sequences.responses(samples)[mine], sequences[MASK][mine], strict=True
        )
    ]

    def run() -> list[Score]:
        found = settings.problems.read([rows.rows[samples.samples[i].group] for i in positions])
        requests = [
            _request(settings, problem, parts, samples.samples[i].truncated)
            for i, problem, parts in zip(positions, found, responses, strict=True)
        ]
        return settings.scorer(requests)

    scores = _gather(place, positions, place.together(run), len(samples))
    return scores, scores.metrics


def _gather(
    place: Placement, positions: Sequence[int], mine: Sequence[Score], count: int
) -> Scores:
    known = {name for score in mine for name in score.metrics}
    known = place.control.merge(known, lambda one, other: one | other)
    names = sorted(known)
    found = place.gather_rows(score_rows(positions, mine, names))
    assert len(found) == count
    found = found[np.argsort(found["position"])]
    num_failed = int(found["failed"].sum())
    if num_failed:
        reasons = agreed_reasons(place.control, (s.error for s in mine if s.error is not None))
        if place.leads:
            _logger.warning(
                "%d of %d rewards failed and are 0: %s", num_failed, count, "; ".join(reasons)
            )
    rows = zip(found["numbers"].tolist(), found["has"].tolist(), strict=True)
    details = [dict(compress(zip(names, numbers, strict=True), has)) for numbers, has in rows]
    return Scores(found["value"].tolist(), num_failed, _means(details), details)


def score_rows(positions: Sequence[int], scores: Sequence[Score], names: Sequence[str]) -> Any:
    """Scores as they travel between ranks, (n,) of a structured dtype: 13 bytes, and 9 for each of
    the further numbers that `names` has."""
    size = (len(names),)
    dtype = [("position", "<i4"), ("value", "<f8"), ("failed", "?")]
    rows: Any = np.zeros(len(positions), [*dtype, ("has", "?", size), ("numbers", "<f8", size)])
    rows["position"] = positions
    rows["value"] = [score.value for score in scores]
    rows["failed"] = [score.error is not None for score in scores]
    for place, name in enumerate(names):
        rows["has"][:, place] = [name in score.metrics for score in scores]
        rows["numbers"][:, place] = [score.metrics.get(name, 0.0) for score in scores]
    return rows


def spans(tokens: Sequence[int], mask: Sequence[int]) -> list[tuple[bool, list[int]]]:
    """Runs of tokens that the model has sampled, or has not, and which of the two."""
    pairs = groupby(zip(tokens, mask, strict=True), key=lambda pair: bool(pair[1]))
    return [(sampled, [token for token, _ in run]) for sampled, run in pairs]


def _request(
    settings: ScoreSettings,
    problem: Problem,
    parts: Sequence[tuple[bool, list[int]]],
    truncated: bool,
) -> Request:
    turns = [_turn(settings, sampled, tokens) for sampled, tokens in parts]
    said = [turn["content"] for turn in turns if turn["role"] == "assistant"]
    return Request(
        problem.index,
        problem.data_source,
        problem.ground_truth,
        problem.extra,
        said[-1] if said else "",
        problem.origin,
        problem.prompt,
        [token for _, tokens in parts for token in tokens],
        turns,
        truncated,
        problem.columns,
    )


def _turn(settings: ScoreSettings, sampled: bool, tokens: list[int]) -> Turn:
    text = settings.tokenizer.decode(tokens, skip_special_tokens=True)
    if not isinstance(text, str):
        raise RewardError(f"the tokenizer decodes to {type(text).__name__}, expected a string")
    return {
        "role": "assistant" if sampled else "environment",
        "content": text,
        "token_ids": tokens,
    }


def _means(metrics: Sequence[Mapping[str, float]]) -> dict[str, float]:
    names = sorted({name for of_one in metrics for name in of_one})
    found = {name: [of_one[name] for of_one in metrics if name in of_one] for name in names}
    return {name: sum(values) / len(values) for name, values in found.items()}
