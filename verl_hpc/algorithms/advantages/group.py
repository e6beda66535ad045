"""Advantages of responses relative to the others to the same prompt."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from verl_hpc.algorithms.advantage import Advantage, Need, Scored
from verl_hpc.algorithms.lazy import torch
from verl_hpc.algorithms.masked import whiten
from verl_hpc.errors import TrainingError
from verl_hpc.section import Finite, PositiveFinite


class _Scaled(Advantage):
    """Differences of scores, divided by a standard deviation or not."""

    std: str
    epsilon: PositiveFinite = 1e-6
    """Added to the deviation; 1e-4 is TRL's."""
    compares: ClassVar[bool] = True

    @model_validator(mode="after")
    def _divides(self) -> Self:
        if self.std == "none":
            self._check_unchanged(["epsilon"], "std: none")
        return self

    def scaled(
        self, batch: Scored, differences: torch.Tensor, scores: torch.Tensor
    ) -> torch.Tensor:
        """(N,): differences of scores / (std + epsilon); std is unbiased, and 1 of one score."""
        if self.std == "none":
            return differences
        if self.std == "batch":
            deviation = scores.std() if len(scores) > 1 else 1
            return differences / (deviation + self.epsilon)
        return differences / (batch.group_std(scores) + self.epsilon)


class Grpo(_Scaled):
    """Each response against those to the same prompt (GRPO, arXiv 2402.03300, section 4.1.2;
    Dr.GRPO, arXiv 2503.20783)."""

    name: Literal["grpo"] = "grpo"
    std: Literal["group", "batch", "none"] = "group"
    """Standard deviation of scores that advantages are divided by: that of the responses to the
    same prompt, of the whole batch (arXiv 2508.08221), or none (Dr.GRPO, arXiv 2503.20783)."""

    def __call__(self, batch: Scored) -> torch.Tensor:
        """(s - mean) / (std + epsilon). The only response to a prompt has mean 0 and, in its group,
        std 1."""
        return self.scaled(batch, batch.scores - batch.group_mean(batch.scores), batch.scores)


class GrpoPassK(_Scaled):
    """The best response to a prompt against the second best; the others have no advantage (pass@k
    training, arXiv 2503.19595)."""

    name: Literal["grpo_passk"] = "grpo_passk"
    std: Literal["group", "none"] = "group"
    """Whether the difference is divided by the standard deviation of the group's scores."""

    def __call__(self, batch: Scored) -> torch.Tensor:
        """(best - second best) / (std + epsilon) for the best, which is 0 if two are the best.

        Raises:
            TrainingError: a prompt has one response alone.
        """
        if (batch.counts < 2).any():
            raise TrainingError(
                "algorithm.advantage.name = grpo_passk: a prompt has one response alone, and the "
                "best is measured against the second best; set rollout.num_samples to at least 2"
            )
        scores = batch.scores
        best = batch.group_max(scores)
        is_best = scores == best
        others = batch.group_max(torch.where(is_best, -torch.inf, scores))
        alone = is_best & (batch.group_sum(is_best.to(scores)) == 1)
        return self.scaled(batch, torch.where(alone, best - others, 0), scores)


class Gdpo(_Scaled):
    """Each reward of a response against those of the others to the same prompt, then their sum
    (GDPO, arXiv 2601.05242)."""

    name: Literal["gdpo"] = "gdpo"
    std: Literal["group", "none"] = "group"
    """Whether each reward is divided by its standard deviation in the group."""
    rewards: Annotated[list[str], Field(min_length=1)]
    """Names of numbers that the reward function returns for every response, such as [format,
    accuracy]; score is the score itself."""
    weights: list[Finite] | None = None
    """Factors of each reward's advantages; null takes 1."""
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
        weights = self.weights or [1.0] * len(self.rewards)
        for name, weight in zip(self.rewards, weights, strict=True):
            values = self._component(batch, name)
            centred = values - batch.group_mean(values)
            total = total + weight * self.scaled(batch, centred, values)
        return whiten(batch.of_tokens(total), batch.mask, batch.reduce) * batch.mask

    def _component(self, batch: Scored, name: str) -> torch.Tensor:
        assert batch.components is not None
        if name not in batch.components:
            known = ", ".join(batch.components)
            raise TrainingError(
                f"algorithm.advantage.rewards: {name} is not there for every response; those that "
                f"are: {known}. Choose among them, or let the reward function return {name}"
            )
        return batch.components[name]


class Rloo(Advantage):
    """Each response against the mean of the others to the same prompt (REINFORCE leave-one-out,
    arXiv 2402.14740, section 2.3)."""

    name: Literal["rloo"] = "rloo"
    compares: ClassVar[bool] = True

    def __call__(self, batch: Scored) -> torch.Tensor:
        """s n / (n - 1) - mean n / (n - 1); the only response to a prompt keeps its score."""
        others = (batch.counts - 1).clamp(min=1)
        return batch.scores - (batch.group_sum(batch.scores) - batch.scores) / others


class Opo(Advantage):
    """Each response against its group's mean, in which long responses weigh more: the baseline of
    least variance (OPO, arXiv 2505.23585, equation 8)."""

    name: Literal["opo"] = "opo"
    compares: ClassVar[bool] = True

    def __call__(self, batch: Scored) -> torch.Tensor:
        """s - sum(length s) / sum(length) over the group; the only response to a prompt keeps its
        score."""
        lengths = batch.lengths()
        total = batch.group_sum(lengths * batch.scores)
        baseline = total / batch.group_sum(lengths).clamp(min=1)
        return batch.scores - torch.where(batch.counts > 1, baseline, 0)


class Gpg(Advantage):
    """Each response against its group's mean, the more the fewer have a score (GPG, arXiv
    2504.02546)."""

    name: Literal["gpg"] = "gpg"
    f_norm: PositiveFinite = 1.0
    """Divisor of the advantages."""
    compares: ClassVar[bool] = True

    def __call__(self, batch: Scored) -> torch.Tensor:
        """alpha (s - mean) / f_norm, alpha = responses of the batch / those whose score is not
        0."""
        alpha = len(batch.scores) / batch.scores.count_nonzero().clamp(min=1).to(batch.scores)
        return alpha * (batch.scores - batch.group_mean(batch.scores)) / self.f_norm


class ReinforcePlusPlusBaseline(Advantage):
    """Each response against the mean of those to its prompt, whitened over the batch's tokens
    (REINFORCE++-baseline, arXiv 2501.03262)."""

    name: Literal["reinforce_plus_plus_baseline"] = "reinforce_plus_plus_baseline"
    compares: ClassVar[bool] = True

    def __call__(self, batch: Scored) -> torch.Tensor:
        """s - mean of the group, on every token, whitened over all tokens that count."""
        centred = batch.of_tokens(batch.scores - batch.group_mean(batch.scores))
        return whiten(centred, batch.mask, batch.reduce) * batch.mask
