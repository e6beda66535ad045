"""Responses to scores, each rank its share."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from verl_hpc.errors import RewardError
from verl_hpc.rewards.scoring import Request, Score, score_responses
from verl_hpc.trainer.operators.generate import Generated
from verl_hpc.trainer.workers import ROLLOUT, Workers

_logger = logging.getLogger(__name__)

_MOST_REASONS = 3
_MOST_TEXT = 300


@dataclass(frozen=True)
class Scores:
    """Scores of all samples of a step, the same on every rank."""

    values: Sequence[float]
    num_failed: int
    """Calls of the reward function that failed and scored 0."""
    extra: Mapping[str, float]
    """Means of further numbers that the reward function returned."""


def score(workers: Workers, generated: Generated) -> Scores:
    """Score every sample; the ranks of an engine divide its samples among them.

    Raises:
        RewardError: on every rank, if a call failed on one and reward.on_error is stop.
    """
    group = workers.layouts.replicas[workers.group_index(ROLLOUT)]
    positions = sorted(generated.responses)[group.index(workers.rank) :: len(group)]
    function = workers.reward
    assert function is not None

    def run() -> list[Score]:
        requests = [_request(workers, generated, i) for i in positions]
        return score_responses(function, requests, workers.config.reward)

    mine = workers.session.control.together(run)
    # Of reasons only some: thousands of failures would be megabytes, to every rank.
    told = [(i, s.value, s.metrics) for i, s in zip(positions, mine, strict=True)]
    reasons = [s.error[:_MOST_TEXT] for s in mine if s.error is not None]
    some = list(dict.fromkeys(reasons))[:_MOST_REASONS]
    gathered = workers.session.control.allgather((told, len(reasons), some))
    by_position = {i: (v, m) for part, _, _ in gathered for i, v, m in part}
    scores = [by_position[i] for i in range(len(generated.samples))]
    num_failed = sum(count for _, count, _ in gathered)
    if num_failed and workers.rank == 0:
        examples = list(dict.fromkeys(r for _, _, part in gathered for r in part))
        _logger.warning(
            "%d of %d rewards failed and are 0: %s",
            num_failed, len(scores), "; ".join(examples[:_MOST_REASONS]),
        )  # fmt: skip
    return Scores([v for v, _ in scores], num_failed, _means([m for _, m in scores]))


def _request(workers: Workers, generated: Generated, position: int) -> Request:
    problem = generated.problems[position]
    tokens = list(generated.responses[position].tokens)
    text = workers.tokenizer.decode(tokens, skip_special_tokens=True)
    if not isinstance(text, str):
        raise RewardError(f"the tokenizer decodes to {type(text).__name__}, expected a string")
    return Request(
        problem.index,
        problem.data_source,
        problem.ground_truth,
        problem.extra,
        text,
        problem.origin,
    )


def _means(metrics: Sequence[Mapping[str, float]]) -> dict[str, float]:
    names = sorted({name for of_one in metrics for name in of_one})
    found = {name: [of_one[name] for of_one in metrics if name in of_one] for name in names}
    return {name: sum(values) / len(values) for name, values in found.items()}
