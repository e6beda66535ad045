"""GDPO: several rewards, each compared by itself (arXiv 2601.05242)."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from verl_hpc.algorithms.advantage import GroupDivided, Need, Scored
from verl_hpc.algorithms.lazy import torch
from verl_hpc.algorithms.masked import whiten
from verl_hpc.errors import TrainingError
from verl_hpc.section import Finite


class Gdpo(GroupDivided):
    """Each reward of a response against those of the others to the same prompt, then their sum."""

    name: Literal["gdpo"] = "gdpo"
    rewards: Annotated[list[str], Field(min_length=1)]
    """Names of numbers that the reward function returns for every response, such as [format,
    accuracy]; score is the score itself."""
    weights: list[Finite] | None = None
    """Factors of each reward's advantages; null takes 1."""
    std: Literal["group", "none"] = "group"
    """Whether each reward is divided by its standard deviation in the group."""
    needs: ClassVar[frozenset[Need]] = frozenset({"components"})

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        if len(set(self.rewards)) < len(self.rewards):
            raise ValueError(f"rewards = {self.rewards}: each name stands there once")
        if self.weights is not None and len(self.weights) != len(self.rewards):
            raise ValueError(
                f"weights = {self.weights}: expected one for each of the "
                f"{len(self.rewards)} rewards"
            )
        return self

    def __call__(self, batch: Scored) -> torch.Tensor:
        """The weighted sum of (r - mean) / (std + epsilon), of each reward r in its group, whitened
        over the tokens of the batch. As GRPO's, the only response to a prompt has mean 0 and std 1.

        Raises:
            TrainingError: a reward is not there for every response.
        """
        total = torch.zeros_like(batch.scores)
        for name, weight in zip(
            self.rewards, self.weights or [1.0] * len(self.rewards), strict=True
        ):
            values = self._of(batch, name)
            centred = values - batch.group_mean(values)
            total = total + weight * self.divided(batch, centred, values)
        return whiten(batch.of_tokens(total), batch.mask, batch.reduce) * batch.mask

    def _of(self, batch: Scored, name: str) -> torch.Tensor:
        assert batch.components is not None
        if name not in batch.components:
            known = ", ".join(batch.components)
            raise TrainingError(
                f"algorithm.advantage.rewards: {name} is not there for every response; those that "
                f"are: {known}. Choose among them, or let the reward function return {name}"
            )
        return batch.components[name]
