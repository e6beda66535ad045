"""Nodes of a flow: a step of `PPOTrainer` in parts, beside rewards and replay of a user's."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from verl_hpc.api.batch import Batch, Trajectory, numbers_of
from verl_hpc.api.rewards import Reward, scorer_of
from verl_hpc.api.trainer import PPOTrainer
from verl_hpc.config.arguments import checked
from verl_hpc.errors import ConfigError
from verl_hpc.flow import Operator
from verl_hpc.section import Finite, NonNegative, Positive


class RolloutNode:
    """Prompts to responses: `responses` from the flow's `prompts`, and from its `references` where
    it has them: `DataFlow(inputs=["references"])`.

    Args:
        trainer: trainer whose actor answers.
        name: name in the flow.
    """

    @checked
    def __init__(self, trainer: PPOTrainer, name: str = "responses") -> None:
        self.trainer, self.name = trainer, name

    def operator(self, earlier: Sequence[Any]) -> Operator:
        """See `Node`."""
        del earlier

        def func(prompts: Any, references: Any = None) -> Batch:
            return self.trainer.rollout(prompts, references=references)

        return Operator(self.name, func)


class RewardNode:
    """A reward for each response. A subclass may have its own `score(batch)`; all reward nodes of a
    flow are added up for its update, each by its weight, so that one is added alone.

    Args:
        reward_fn: a reward as `PPOTrainer` takes one; not needed by a subclass with its own
            `score`.
        weight: factor of the rewards in the update.
        name: name in the flow, the class's in small letters if None.
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

        return Operator(self.name, func, inputs={"batch": _responses(earlier)})


class ReplayBuffer:
    """Keeps responses with their rewards, and gives the update some of earlier steps again.

    As a node it stands behind rewards and before the update, whose trainer has `replay: True`:
    tokens of earlier weights are weighted by how likely they have become.

    Args:
        capacity: responses that are kept; the oldest go first.
        num_samples: earlier responses that a step gets besides its own.
        seed: seed of the choice.
        name: name in the flow.
    """

    @checked
    def __init__(
        self,
        capacity: Positive = 1024,
        num_samples: NonNegative = 8,
        seed: int = 0,
        name: str = "replay",
    ) -> None:
        self.capacity, self.num_samples, self.name = capacity, num_samples, name
        self._random = Random(seed)  # noqa: S311
        self._kept: list[Trajectory] = []

    def __len__(self) -> int:
        return len(self._kept)

    @checked
    def mix(self, batch: Batch, rewards: Any) -> Batch:
        """Return a step's responses with their rewards, and earlier ones behind them."""
        scored, count = batch.scored(rewards), min(self.num_samples, len(self._kept))
        mixed = Batch([*scored, *self._random.sample(self._kept, count)])
        self._kept = [*self._kept, *scored][-self.capacity :]
        return mixed

    def operator(self, earlier: Sequence[Any]) -> Operator:
        """See `Node`."""
        return _with_rewards(self.name, earlier, self.mix)


class UpdateNode:
    """The trainer's update on a flow's responses: `metrics` of it.

    Args:
        trainer: trainer that learns.
        name: name in the flow.
    """

    @checked
    def __init__(self, trainer: PPOTrainer, name: str = "metrics") -> None:
        self.trainer, self.name = trainer, name

    def operator(self, earlier: Sequence[Any]) -> Operator:
        """See `Node`."""
        replay = next((n for n in earlier if isinstance(n, ReplayBuffer)), None)
        if replay is None:
            return _with_rewards(self.name, earlier, self.trainer.update)
        if not self.trainer.config.replay:
            raise ConfigError(
                "UpdateNode behind a ReplayBuffer: its trainer takes responses of earlier weights "
                "with replay: True in its config"
            )

        def update(mixed: Batch) -> dict[str, float]:
            return self.trainer.update(mixed, [r.reward or 0.0 for r in mixed])

        return Operator(self.name, update, inputs={"mixed": replay.name})


def _responses(earlier: Sequence[Any]) -> str:
    """Return the name of the responses before a node."""
    return next((n.name for n in reversed(earlier) if isinstance(n, RolloutNode)), "responses")


def _with_rewards(
    name: str, earlier: Sequence[Any], func: Callable[[Batch, list[float]], Any]
) -> Operator:
    """Return an operator on responses, and on the weighted sum of what all reward nodes before it
    give."""
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
    return Operator(name, run, inputs={"batch": _responses(earlier)})
