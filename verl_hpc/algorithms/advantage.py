"""Interface of advantage estimators: settings that are called with a step's scores."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Literal, Self

from pydantic import model_validator

from verl_hpc.algorithms.lazy import torch
from verl_hpc.algorithms.masked import Reduce, alone
from verl_hpc.section import OwnName, OwnSection, PositiveFinite, Section

Need = Literal["values", "greedy", "sum_p_squared", "process_rewards", "components"]
"""values: of a critic, which the run then has as a role. greedy: score of the greedy answer to each
prompt, which is then generated as well. sum_p_squared: of each token, with its log-prob.
process_rewards: of each token, by the role prm, which is then trained with the policy. components:
numbers that the reward function returns in addition to a score."""


@dataclass(frozen=True)
class Scored:
    """The scored responses of a step: all N of them, of which B with up to T tokens are here.

    Whatever is of all responses is the same on every rank.
    """

    scores: torch.Tensor
    """(N,) float64: sums of what the tokens earn; a KL penalty is taken off."""
    groups: torch.Tensor
    """(N,) int64: which prompt each response answers, from 0."""
    here: torch.Tensor
    """(B,) int64: which of the N the rows here are."""
    pad: Callable[[], tuple[torch.Tensor, torch.Tensor]]
    """Makes `mask` and `rewards` when one of them is first asked for, which takes long and which
    estimators of whole responses never do."""
    values: torch.Tensor | None = None
    """(B, T), of the state before each token, for an estimator that needs them."""
    greedy: torch.Tensor | None = None
    """(N,): score of the greedy answer to the same prompt, for an estimator that needs it."""
    log_probs: torch.Tensor | None = None
    """(B, T): what the policy ratio starts from, for an estimator that needs sum_p_squared."""
    sum_p_squared: torch.Tensor | None = None
    """(B, T): sum over the vocabulary of the squares of the probabilities that a token is drawn
    by, for an estimator that needs it."""
    process_rewards: torch.Tensor | None = None
    """(B, T), of each token by the role prm, for an estimator that needs them."""
    components: Mapping[str, torch.Tensor] | None = None
    """(N,) float64 each: the numbers that the reward function returned for every response, and
    score, for an estimator that needs them."""
    reduce: Reduce = alone
    """Sums a tensor over data-parallel ranks; all of them call it."""

    @property
    def mask(self) -> torch.Tensor:
        """(B, T): 1 where a token is trained on."""
        return self._padded[0]

    @property
    def rewards(self) -> torch.Tensor:
        """(B, T): what each token earns, less its KL penalty; where the reward function gave one
        number for a response, the last token that counts earns all of it."""
        return self._padded[1]

    @cached_property
    def _padded(self) -> tuple[torch.Tensor, torch.Tensor]:
        return self.pad()

    def lengths(self) -> torch.Tensor:
        """(N,) float64: tokens of each response that count; every rank calls it."""
        lengths = torch.zeros_like(self.scores)
        lengths[self.here] = self.mask.sum(-1).to(lengths)
        return self.reduce(lengths)

    @cached_property
    def counts(self) -> torch.Tensor:
        """(N,) float64: how many responses there are to the same prompt."""
        return self.group_sum(torch.ones_like(self.scores))

    def group_sum(self, values: torch.Tensor) -> torch.Tensor:
        """(N,) to (N,): the sum over the responses to the same prompt."""
        return values.new_zeros(self.num_groups).index_add(0, self.groups, values)[self.groups]

    def group_max(self, values: torch.Tensor) -> torch.Tensor:
        """(N,) to (N,): the largest of the responses to the same prompt."""
        lowest = values.new_full((self.num_groups,), -torch.inf)
        return lowest.scatter_reduce(0, self.groups, values, "amax")[self.groups]

    def group_mean(self, values: torch.Tensor) -> torch.Tensor:
        """(N,) to (N,): the mean over the responses to the same prompt; 0 where there is one, as in
        published estimators."""
        counts = self.counts
        return torch.where(counts > 1, self.group_sum(values) / counts, 0)

    def group_std(self, values: torch.Tensor) -> torch.Tensor:
        """(N,) to (N,): the unbiased standard deviation over the responses to the same prompt; 1
        where there is one."""
        counts = self.counts
        squares = self.group_sum((values - self.group_mean(values)) ** 2)
        return torch.where(counts > 1, (squares / (counts - 1).clamp(min=1)).sqrt(), 1)

    def of_tokens(self, values: torch.Tensor) -> torch.Tensor:
        """(N,) to (B, T): each token that counts has its response's; the others have 0."""
        return values[self.here, None] * self.mask

    @property
    def num_groups(self) -> int:
        """How many prompts are answered."""
        return int(self.groups.max()) + 1


Returns = tuple["torch.Tensor", "torch.Tensor"]


class Advantage(Section):
    """An advantage estimator: its fields are the settings of `algorithm.advantage`.

    One is a class in a file of this package's `advantages`, or in a file of the user's
    (`algorithm.advantage.name: path/file.py:Name`). Calling it gives the advantages of a step.
    """

    name: str
    needs: ClassVar[frozenset[Need]] = frozenset()
    """Inputs that a run computes for it in addition to responses and scores."""
    compares: ClassVar[bool] = False
    """Whether it says nothing about the only response to a prompt."""

    def __call__(self, batch: Scored) -> torch.Tensor | Returns:
        """Advantages of responses, (N,), or of tokens, (B, T); one that needs values also gives the
        returns that its critic learns, (B, T)."""
        raise NotImplementedError


class GroupDivided(Advantage):
    """One that divides by the standard deviation of each group's scores, unless std is none."""

    std: str = "group"
    epsilon: PositiveFinite = 1e-6
    """Added to the deviation; 1e-4 is TRL's."""
    compares: ClassVar[bool] = True

    @model_validator(mode="after")
    def _divides(self) -> Self:
        if self.std == "none":
            self._check_unchanged(["epsilon"], "std: none")
        return self

    def divided(self, batch: Scored, values: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """(N,) to (N,): the values over the deviation of the scores in their groups."""
        return values if self.std == "none" else values / (batch.group_std(scores) + self.epsilon)


class OwnAdvantage(Advantage, OwnSection):
    """One of the user's, before its file is loaded."""

    name: OwnName
