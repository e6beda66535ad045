"""Prompts with their responses, as they go from a rollout to rewards and to an update."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch

from verl_hpc.api.prompts import ids_of, plain
from verl_hpc.config.explain import shown
from verl_hpc.data.problem import Problem
from verl_hpc.errors import DataError
from verl_hpc.generation.answers import Answer
from verl_hpc.rewards.request import Request
from verl_hpc.step.batch import MASK, ROLLOUT_LOG_PROBS, TOKENS, Columns, Sample, Samples


@dataclass(frozen=True)
class Trajectory:
    """A prompt with one response."""

    problem: Problem
    """The prompt, and what is needed to score the response."""
    response_ids: tuple[int, ...]
    """Tokens, with the end-of-sequence token where the response has ended by itself."""
    log_probs: tuple[float, ...]
    """Log-probability of each token of the response, by the weights that it was sampled with."""
    truncated: bool
    """Whether the response was ended by its length."""
    tokenizer: Any = field(repr=False, compare=False)
    reward: float | None = None
    """Its score, where it has been scored."""

    @property
    def prompt(self) -> str:
        return str(self.problem.prompt)

    @property
    def prompt_ids(self) -> tuple[int, ...]:
        return tuple(ids_of(self.problem))

    @cached_property
    def response(self) -> str:
        """Text without special tokens."""
        text: str = self.tokenizer.decode(self.response_ids, skip_special_tokens=True)
        return text

    @property
    def reference(self) -> Any:
        """What is right, where somebody has said so."""
        return self.problem.ground_truth


class Batch(tuple[Trajectory, ...]):
    """The responses of a step; those to one prompt are neighbours."""

    __slots__ = ()

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

    def scored(self, rewards: Any) -> Batch:
        """Return the responses with a reward each.

        Raises:
            DataError: there are as many rewards as there are not responses.
        """
        pairs = zip(self, numbers_of(self, rewards), strict=True)
        return Batch([replace(t, reward=v) for t, v in pairs])

    @property
    def samples(self) -> Samples:
        """Lengths and groups, as operators know them."""
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


def numbers_of(batch: Batch, rewards: Any, name: str = "rewards") -> list[float]:
    """Return a number for each response; a tensor of torch or numpy may have them.

    Args:
        name: what errors call them.

    Raises:
        DataError: they are no finite numbers, or not as many as responses.
    """
    numbers = plain(rewards)
    if isinstance(numbers, Iterable) and not isinstance(numbers, str | Mapping | list):
        numbers = plain(list(numbers))
    if isinstance(numbers, list):
        # The logits of a reward model have shape (N, 1).
        numbers = [n[0] if isinstance(n, list) and len(n) == 1 else n for n in numbers]
    if not isinstance(numbers, list) or not all(
        isinstance(number, int | float) and math.isfinite(number) for number in numbers
    ):
        raise DataError(f"{name} = {shown(rewards)}; expected a number for each response")
    if len(numbers) != len(batch):
        raise DataError(
            f"{name}: {len(numbers)} rewards for {len(batch)} responses; give one for each"
        )
    return [float(number) for number in numbers]


def batch_of(
    samples: Samples, sequences: Columns, problems: Sequence[Problem], tokenizer: Any
) -> Batch:
    """Return what the operator rollout has given as a batch; each group has its problem."""
    columns = sequences.responses(samples), sequences[ROLLOUT_LOG_PROBS]
    rows = []
    for position, tokens, log_probs in zip(sequences.positions, *columns, strict=True):
        sample = samples.samples[position]
        ids, values = tuple(tokens.tolist()), tuple(log_probs.tolist())
        rows.append(Trajectory(problems[sample.group], ids, values, sample.truncated, tokenizer))
    return Batch(rows)
