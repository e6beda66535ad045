"""Nodes of a flow: a step of `PPOTrainer` in parts, with rewards and replay of a user's beside."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from verl_hpc.api.batch import Batch, Trajectory, numbers_of
from verl_hpc.api.rewards import Reward, scorer_of
from verl_hpc.api.trainer import PPOTrainer
from verl_hpc.config.arguments import checked
from verl_hpc.errors import ConfigError, DataError
from verl_hpc.flow import Operator
from verl_hpc.section import Finite, NonNegative


class RolloutNode:
    """Prompts to responses: `responses` from the flow's `prompts`, and from its `references` where
    it has them: `DataFlow(inputs=["references"])`.

    Args:
        trainer: whose actor answers.
        name: in the flow.
    """

    @checked
    def __init__(self, trainer: PPOTrainer, name: str = "responses") -> None:
        self.trainer, self.name = trainer, name

    def run(self, prompts: Any, references: Sequence[Any] | None = None) -> Batch:
        """Texts, or token ids, to a batch."""
        return self.trainer.rollout(prompts, references=references)

    def operator(self, earlier: Sequence[Any]) -> Operator:
        """See `Node`."""
        del earlier

        def func(prompts: Any, references: Any = None) -> Batch:
            return self.run(prompts, references)

        return Operator(self.name, func)


class RewardNode:
    """A reward for each response. A subclass may have its own `score(batch)`; all reward nodes of a
    flow are added up for its update, each by its weight, so that one is added alone.

    Args:
        reward_fn: as `PPOTrainer`'s; not needed where `score` is the subclass's own.
        weight: that the update multiplies it with.
        name: in the flow, the class's in small letters if None.
    """

    @checked
    def __init__(
        self, reward_fn: Reward = None, weight: Finite = 1.0, name: str | None = None
    ) -> None:
        self.weight, self.name = weight, name or type(self).__name__.lower()
        own = type(self).score is not RewardNode.score
        if reward_fn is None and not own:
            raise ConfigError(
                f"{type(self).__name__}: give reward_fn, or a subclass its own score(batch)"
            )
        self._scorer = None if own else scorer_of(reward_fn)

    def score(self, batch: Batch) -> Sequence[float]:
        """One number for each response."""
        assert self._scorer is not None
        return [score.value for score in self._scorer(batch.requests)]

    def operator(self, earlier: Sequence[Any]) -> Operator:
        """See `Node`."""

        def func(batch: Batch) -> Sequence[float]:
            return self.score(batch)

        return Operator(self.name, func, inputs={"batch": _of_responses(earlier)})


class ReplayBuffer:
    """Keeps responses with their rewards, and gives the update some of earlier steps again.

    As a node it stands behind rewards and before the update, whose trainer has `replay: True`:
    tokens of earlier weights are weighted by how likely they have become.

    Args:
        capacity: responses that are kept; the oldest go first.
        num_samples: earlier responses that a step gets besides its own.
        seed: of the choice.
        name: in the flow.
    """

    @checked
    def __init__(
        self, capacity: int = 1024, num_samples: int = 8, seed: int = 0, name: str = "replay"
    ) -> None:
        if capacity < 1 or num_samples < 0:
            raise ConfigError(
                f"ReplayBuffer: capacity = {capacity}, num_samples = {num_samples}; expected at "
                "least 1 and 0"
            )
        self.capacity, self.num_samples, self.name = capacity, num_samples, name
        self._random = Random(seed)  # noqa: S311
        self._kept: list[Trajectory] = []

    def __len__(self) -> int:
        return len(self._kept)

    @checked
    def add(self, batch: Batch) -> None:
        """Keep responses.

        Raises:
            DataError: one has no reward.
        """
        if any(trajectory.reward is None for trajectory in batch):
            raise DataError("ReplayBuffer.add: a response has no reward; use batch.scored(rewards)")
        self._kept = [*self._kept, *batch][-self.capacity :]

    @checked
    def sample(self, count: NonNegative) -> list[Trajectory]:
        """That many of what is kept, or all; no response twice."""
        return self._random.sample(self._kept, min(count, len(self._kept)))

    @checked
    def mix(self, batch: Batch, rewards: Any) -> Batch:
        """A step's responses with their rewards, and earlier ones behind them."""
        scored = batch.scored(rewards)
        mixed = scored.with_more(self.sample(self.num_samples))
        self.add(scored)
        return mixed

    def operator(self, earlier: Sequence[Any]) -> Operator:
        """See `Node`."""
        return _with_rewards(self.name, earlier, self.mix, _of_responses(earlier))


class UpdateNode:
    """The trainer's update on a flow's responses: `metrics` of it.

    Args:
        trainer: that learns.
        name: in the flow.
    """

    @checked
    def __init__(self, trainer: PPOTrainer, name: str = "metrics") -> None:
        self.trainer, self.name = trainer, name

    def operator(self, earlier: Sequence[Any]) -> Operator:
        """See `Node`."""
        replay = next((n for n in earlier if isinstance(n, ReplayBuffer)), None)
        if replay is None:
            batch = _of_responses(earlier)
            return _with_rewards(self.name, earlier, self.trainer.update, batch)
        if not self.trainer.config.replay:
            raise ConfigError(
                "UpdateNode behind a ReplayBuffer: its trainer takes responses of earlier weights "
                "with replay: True in its config"
            )

        def update(mixed: Batch) -> dict[str, float]:
            return self.trainer.update(mixed, [r.reward or 0.0 for r in mixed])

        return Operator(self.name, update, inputs={"mixed": replay.name})


def _of_responses(earlier: Sequence[Any]) -> str:
    """Name of the responses before a node."""
    found = [n.name for n in earlier if isinstance(n, RolloutNode)]
    return found[-1] if found else "responses"


def _with_rewards(
    name: str, earlier: Sequence[Any], func: Callable[[Batch, list[float]], Any], batch: str
) -> Operator:
    """An operator on responses, and on the weighted sum of what all reward nodes before it give."""
    nodes = [node for node in earlier if isinstance(node, RewardNode)]
    if not nodes:
        raise ConfigError(f"{name}: no RewardNode is before it; add one")

    def run(**values: Any) -> Any:
        batch = values["batch"]
        given = [(node.weight, numbers_of(batch, values[node.name], node.name)) for node in nodes]
        sums = [sum(weight * rewards[i] for weight, rewards in given) for i in range(len(batch))]
        return func(batch, sums)

    kind = inspect.Parameter.KEYWORD_ONLY
    parameters = [inspect.Parameter(n, kind) for n in ("batch", *(node.name for node in nodes))]
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return Operator(name, run, inputs={"batch": batch})
