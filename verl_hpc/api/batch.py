"""Prompts with their responses, as they go from a rollout to rewards and to an update."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch

from verl_hpc.api.prompts import ids_of
from verl_hpc.config.explain import shown
from verl_hpc.data.problem import Problem
from verl_hpc.errors import DataError
from verl_hpc.generation.answers import Answer
from verl_hpc.generation.score import per_token_of
from verl_hpc.rewards.request import Request
from verl_hpc.rewards.scoring import Score
from verl_hpc.step.batch import (
    MASK,
    ROLLOUT_LOG_PROBS,
    TOKENS,
    Columns,
    Sample,
    Samples,
)
from verl_hpc.step.scores import Scores


@dataclass(frozen=True)
class Trajectory:
    """A prompt with one response."""

    problem: Problem
    """What it answers."""
    response_ids: tuple[int, ...]
    """With its end-of-sequence token, where it has ended by itself."""
    log_probs: tuple[float, ...]
    """Of each token of the response, by the weights that it was sampled with."""
    truncated: bool
    """Ended by its length."""
    tokenizer: Any = field(repr=False, compare=False)
    reward: float | None = None
    """Where it has been scored."""

    @property
    def prompt(self) -> str:
        return str(self.problem.prompt)

    @property
    def prompt_ids(self) -> tuple[int, ...]:
        return tuple(ids_of(self.problem))

    @cached_property
    def response(self) -> str:
        """Without special tokens."""
        text: str = self.tokenizer.decode(self.response_ids, skip_special_tokens=True)
        return text

    @property
    def reference(self) -> Any:
        """What is right, where somebody has said so."""
        return self.problem.ground_truth


class Batch(Sequence[Trajectory]):
    """The responses of a step; those to one prompt are neighbours."""

    def __init__(self, trajectories: Sequence[Trajectory]) -> None:
        self._trajectories = tuple(trajectories)

    def __len__(self) -> int:
        return len(self._trajectories)

    def __getitem__(self, index: Any) -> Any:
        return self._trajectories[index]

    def __iter__(self) -> Iterator[Trajectory]:
        return iter(self._trajectories)

    @property
    def texts(self) -> list[str]:
        """All responses."""
        return [t.response for t in self]

    @property
    def requests(self) -> list[Request]:
        """What reward functions are asked."""
        return [
            Answer(t.problem, t.response_ids, (1,) * len(t.response_ids), t.truncated).request(
                t.tokenizer
            )
            for t in self
        ]

    def scored(self, rewards: Sequence[float]) -> Batch:
        """The same with a reward each.

        Raises:
            DataError: there are as many rewards as there are not responses.
        """
        pairs = zip(self, numbers_of(self, rewards), strict=True)
        return Batch([replace(t, reward=v) for t, v in pairs])

    def with_more(self, trajectories: Sequence[Trajectory]) -> Batch:
        """The same, and others behind."""
        return Batch([*self, *trajectories])

    @property
    def samples(self) -> Samples:
        """Facts, as operators know them."""
        groups: dict[int, int] = {}
        rows = []
        for index, t in enumerate(self):
            group = groups.setdefault(id(t.problem), len(groups))
            lengths = len(t.prompt_ids), len(t.response_ids)
            rows.append(Sample(index, group, *lengths, t.truncated))
        return Samples(tuple(rows), {"rollout": [0] * len(rows)})

    def columns(self, device: torch.device) -> Columns:
        """Tokens, as operators have them."""
        values: Mapping[str, list[torch.Tensor]] = {
            TOKENS: [torch.tensor((*t.prompt_ids, *t.response_ids), device=device) for t in self],
            MASK: [torch.ones(len(t.response_ids), dtype=torch.uint8, device=device) for t in self],
            ROLLOUT_LOG_PROBS: [torch.tensor(t.log_probs, device=device) for t in self],
        }
        return Columns(range(len(self)), dict(values))


def numbers_of(batch: Batch, rewards: Any, said: str = "rewards") -> list[float]:
    """A number for each response; a tensor of torch or numpy may have them.

    Args:
        said: what errors call them.

    Raises:
        DataError: they are no finite numbers, or not as many as responses.
    """
    found = _finite(rewards)
    if found is None:
        raise DataError(f"{said} = {shown(rewards)}; expected a number for each response")
    if len(found) != len(batch):
        raise DataError(
            f"{said}: {len(found)} rewards for {len(batch)} responses; give one for each"
        )
    return found


def _finite(values: Any) -> list[float] | None:
    """None if one is no number, or not finite; of a mapping keys would be taken."""
    if isinstance(values, str | Mapping):
        return None
    try:
        given = list(values)
        found = [float(value) for value in given]
    except (TypeError, ValueError):
        return None
    is_text = any(isinstance(value, str) for value in given)
    return found if all(map(math.isfinite, found)) and not is_text else None


def scores_of(found: Sequence[Score]) -> Scores:
    """Scores of a whole batch, in its order."""
    names = sorted({name for score in found for name in score.metrics})
    means = {}
    for name in names:
        having = [score.metrics[name] for score in found if name in score.metrics]
        means[name] = sum(having) / len(having)
    num_failed = sum(score.error is not None for score in found)
    per_token = {i: per_token_of(score) for i, score in enumerate(found) if any(score.per_token)}
    return Scores([score.value for score in found], num_failed, means, per_token=per_token)


def batch_of(
    samples: Samples, sequences: Columns, problems: Sequence[Problem], tokenizer: Any
) -> Batch:
    """What the operator rollout has given.

    Args:
        problems: of each group.
    """
    found = []
    columns = sequences.responses(samples), sequences[ROLLOUT_LOG_PROBS]
    for position, tokens, log_probs in zip(sequences.positions, *columns, strict=True):
        sample = samples.samples[position]
        problem, values = problems[sample.group], tuple(log_probs.tolist())
        ids = tuple(tokens.tolist())
        found.append(Trajectory(problem, ids, values, sample.truncated, tokenizer))
    return Batch(found)
