"""Prompts with their responses, as they go from a rollout to rewards and to an update."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from verl_hpc.config.explain import shown
from verl_hpc.data.problem import Problem
from verl_hpc.errors import DataError
from verl_hpc.rewards.request import Request
from verl_hpc.rewards.scoring import Score
from verl_hpc.trainer.answers import Answer
from verl_hpc.trainer.batch import (
    MASK,
    ROLLOUT_LOG_PROBS,
    TOKENS,
    Columns,
    Sample,
    Samples,
)
from verl_hpc.trainer.operators.score import Scores


@dataclass(frozen=True)
class Rollout:
    """One response."""

    problem: Problem
    """What it answers."""
    prompt_ids: tuple[int, ...]
    response_ids: tuple[int, ...]
    """With its end-of-sequence token, where it has ended by itself."""
    log_probs: tuple[float, ...]
    """Of each token of the response, by the weights that it was sampled with."""
    response: str
    """Without special tokens."""
    truncated: bool
    """Ended by its length."""
    reward: float | None = None
    """Where it has been scored."""

    @property
    def prompt(self) -> str:
        return str(self.problem.prompt)

    @property
    def reference(self) -> Any:
        """What is right, where somebody has said so."""
        return self.problem.ground_truth


class Batch(Sequence[Rollout]):
    """The responses of a step; those to one prompt are neighbours."""

    def __init__(self, rollouts: Sequence[Rollout], tokenizer: Any) -> None:
        self._rollouts, self._tokenizer = tuple(rollouts), tokenizer

    def __len__(self) -> int:
        return len(self._rollouts)

    def __getitem__(self, index: Any) -> Any:
        return self._rollouts[index]

    def __iter__(self) -> Iterator[Rollout]:
        return iter(self._rollouts)

    @property
    def texts(self) -> list[str]:
        """All responses."""
        return [rollout.response for rollout in self]

    @property
    def requests(self) -> list[Request]:
        """What reward functions are asked."""
        answers = [
            Answer(r.problem, r.response_ids, (1,) * len(r.response_ids), r.truncated) for r in self
        ]
        return [answer.request(self._tokenizer) for answer in answers]

    def scored(self, rewards: Sequence[float]) -> Batch:
        """The same with a reward each.

        Raises:
            DataError: there are as many rewards as there are not responses.
        """
        pairs = zip(self, numbers_of(self, rewards), strict=True)
        return Batch([replace(r, reward=v) for r, v in pairs], self._tokenizer)

    def with_more(self, rollouts: Sequence[Rollout]) -> Batch:
        """The same, and others behind."""
        return Batch([*self, *rollouts], self._tokenizer)

    @property
    def samples(self) -> Samples:
        """Facts, as operators know them."""
        groups: dict[int, int] = {}
        rows = []
        for index, r in enumerate(self):
            group = groups.setdefault(id(r.problem), len(groups))
            lengths = len(r.prompt_ids), len(r.response_ids)
            rows.append(Sample(index, group, *lengths, r.truncated))
        return Samples(tuple(rows), {"rollout": [0] * len(rows)})

    def columns(self, device: torch.device) -> Columns:
        """Tokens, as operators have them."""
        values: Mapping[str, list[torch.Tensor]] = {
            TOKENS: [torch.tensor((*r.prompt_ids, *r.response_ids), device=device) for r in self],
            MASK: [torch.ones(len(r.response_ids), dtype=torch.uint8, device=device) for r in self],
            ROLLOUT_LOG_PROBS: [torch.tensor(r.log_probs, device=device) for r in self],
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
    return Scores([score.value for score in found], num_failed, means)


def batch_of(
    samples: Samples, sequences: Columns, problems: Sequence[Problem], tokenizer: Any
) -> Batch:
    """What the operator rollout has given.

    Args:
        problems: of each group.
    """
    found = []
    rows = zip(sequences.positions, sequences[TOKENS], sequences[ROLLOUT_LOG_PROBS], strict=True)
    for position, tokens, log_probs in rows:
        sample = samples.samples[position]
        ids = tokens.tolist()
        response = tuple(ids[sample.prompt_length :])
        found.append(
            Rollout(
                problems[sample.group],
                tuple(ids[: sample.prompt_length]),
                response,
                tuple(log_probs.tolist()),
                tokenizer.decode(response, skip_special_tokens=True),
                sample.truncated,
            )
        )
    return Batch(found, tokenizer)
