"""What tasks share: one actor, perhaps one critic, and the weights that they started from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch

from verl_hpc.api.loading import tokenizer_of
from verl_hpc.api.modules import (
    architecture_of,
    as_actor,
    as_critic,
    check_apart,
    check_tokenizer,
    device_of,
    end_tokens,
    names_of,
)
from verl_hpc.api.tasks.heads import ActorHead, CriticHead
from verl_hpc.config.model import OptimizerConfig
from verl_hpc.config.role import ACTOR, CRITIC
from verl_hpc.engines.shared_module import OptimizerPath, SharedModule
from verl_hpc.errors import ConfigError
from verl_hpc.layout.heads import VALUE_HEAD
from verl_hpc.step.role import InitialWeights, Role
from verl_hpc.trainer.context import RunContext


class SharedModels:
    """The models of a `Trainer`.

    Args:
        actor: an `ActorModel`, or an AutoModelForCausalLM.
        critic: a `CriticModel`, whose decoder the value heads of tasks read, or a language model,
            of whose decoder a copy is taken; None.
        tokenizer: of both; None takes the one that the actor was loaded with.

    Raises:
        ConfigError: an actor that is not trained, or no tokenizer.
        ModelError: a model without parameters to train, or both share some.
    """

    def __init__(self, actor: Any, critic: torch.nn.Module | None, tokenizer: Any) -> None:
        self.actor, self.critic = as_actor(actor, "Trainer: actor"), as_critic(critic)
        check_apart(self.actor, self.critic, "actor", "critic")
        self.device, self.arch = device_of(self.actor), architecture_of(self.actor)
        self.tokenizer = tokenizer if tokenizer is not None else tokenizer_of(self.actor, "Trainer")
        check_tokenizer(self.tokenizer, "Trainer")
        self.ends = end_tokens(self.actor, self.tokenizer)
        names = names_of(self.actor)
        self.weights = SharedModule(self.actor, self.arch, "language_model", self.device, names)

    @cached_property
    def decoder(self) -> SharedModule | None:
        """Of the critic."""
        if self.critic is None:
            return None
        names = names_of(self.critic)
        head = [VALUE_HEAD] if VALUE_HEAD in names.values() else []
        arch = architecture_of(self.critic)
        return SharedModule(self.critic, arch, "value", self.device, names, leave_out=head)

    @cached_property
    def reference(self) -> InitialWeights:
        """The actor as it was when this was first asked for."""
        return InitialWeights(self.weights)

    @property
    def dtype(self) -> str:
        """Of the actor's parameters."""
        return str(self.weights.dtype).removeprefix("torch.")

    def head(self, reads: str, setting: str) -> torch.nn.Module | None:
        """A new value head.

        Args:
            reads: critic, actor, or none.

        Raises:
            ConfigError: there is no critic.
            ModelError: no head can read that model.
        """
        if reads == "none":
            return None
        if reads == "actor":
            return ActorHead(self.actor)
        if self.critic is None:
            raise ConfigError(
                f"{setting} = critic: the trainer has none; give it one, or choose actor or none"
            )
        return CriticHead(self.critic)

    def engines(
        self, lr: float, critic_lr: float, head: torch.nn.Module | None
    ) -> dict[str, OptimizerPath]:
        """A task's, by role: each has an optimizer of its own over what is shared and its own."""
        engines = {ACTOR: self._path(self.actor, lr, self.weights)}
        if head is not None:
            shared = self.decoder if isinstance(head, CriticHead) else None
            engines[CRITIC] = self._path(head, critic_lr, shared)
        return engines

    def _path(
        self, module: torch.nn.Module, lr: float, shared: SharedModule | None
    ) -> OptimizerPath:
        is_actor = module is self.actor
        return OptimizerPath(
            module,
            self.arch if is_actor else architecture_of(module),
            "language_model" if is_actor else "value",
            OptimizerConfig(lr=lr),
            self.device,
            shared,
            None if is_actor else dict(module.named_parameters()),
        )

    def roles(self, first: RunContext) -> Iterator[tuple[str, Role]]:
        """What is shared, as roles of a checkpoint.

        Args:
            first: a task's run, for its placement.
        """
        for name, engine in ((ACTOR, self.weights), (CRITIC, self.decoder)):
            if engine is not None:
                yield name, renamed(first.roles[ACTOR], name, engine)


def renamed(role: Role, name: str, engine: SharedModule | OptimizerPath) -> Role:
    """A role of a checkpoint: a task's, or what tasks share."""
    return replace(
        role,
        name=name,
        arch=engine.arch,
        shard_map=engine.shard_map,
        trained_map=engine.trained_map,
        training=engine,
    )
