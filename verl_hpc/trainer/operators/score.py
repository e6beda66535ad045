"""Responses to scores, each rank its share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from verl_hpc.errors import RewardError
from verl_hpc.rewards.scoring import Request, Score, score_responses
from verl_hpc.trainer.operators.generate import Generated
from verl_hpc.trainer.workers import ROLLOUT, Workers


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
    gathered = workers.session.control.allgather(list(zip(positions, mine, strict=True)))
    by_position = {i: s for part in gathered for i, s in part}
    scores = [by_position[i] for i in range(len(generated.samples))]
    return Scores([s.value for s in scores], sum(s.failed for s in scores), _means(scores))


def _request(workers: Workers, generated: Generated, position: int) -> Request:
    problem = generated.problems[position]
    tokens = list(generated.responses[position].tokens)
    text = workers.tokenizer.decode(tokens, skip_special_tokens=True)
    if not isinstance(text, str):
        raise RewardError(f"the tokenizer decodes to {type(text).__name__}, expected a string")
    return Request(problem.index, problem.data_source, problem.ground_truth, problem.extra, text)


def _means(scores: Sequence[Score]) -> dict[str, float]:
    names = sorted({name for s in scores for name in s.metrics})
    found = {name: [s.metrics[name] for s in scores if name in s.metrics] for name in names}
    return {name: sum(values) / len(values) for name, values in found.items()}
