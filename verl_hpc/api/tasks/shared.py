"""What tasks share: one actor, perhaps one critic, and the weights that they started from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch
from torch.func import functional_call

from verl_hpc.api.loading import tokenizer_of
from verl_hpc.api.models import model_in
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
from verl_hpc.config.model import OptimizerConfig
from verl_hpc.config.role import ACTOR, CRITIC
from verl_hpc.engines.shared_module import OptimizerPath, SharedModule
from verl_hpc.errors import ConfigError, ModelError
from verl_hpc.layout.heads import VALUE_HEAD
from verl_hpc.step.role import InitialWeights, Role
from verl_hpc.trainer.context import RunContext


class SharedModels:
    """The models of a `Trainer`.

    Args:
        actor: an `ActorModel`, or an AutoModelForCausalLM.
        critic: a `CriticModel`, whose decoder the value heads of tasks read, or a language model,
            of whose decoder a copy is taken; None.
        tokenizer: tokenizer of both; None takes the one that the actor was loaded with.

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
        """The critic's decoder, if there is a critic."""
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

    def head(self, reads: str, setting: str) -> torch.nn.Module | None:
        """Make a new value head.

        Args:
            reads: critic, actor, or none.
            setting: name of the setting, for errors.

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
        """Make a task's engines by role, each with an optimizer over what is shared and its own."""
        adam = OptimizerConfig(lr=lr)
        engines = {
            ACTOR: OptimizerPath(
                self.actor, self.arch, "language_model", adam, self.device, self.weights, None
            )
        }
        if head is not None:
            engines[CRITIC] = OptimizerPath(
                head,
                architecture_of(head),
                "value",
                OptimizerConfig(lr=critic_lr),
                self.device,
                self.decoder if isinstance(head, CriticHead) else None,
                dict(head.named_parameters()),
            )
        return engines

    def roles(self, first: RunContext) -> Iterator[tuple[str, Role]]:
        """Give what is shared, as roles of a checkpoint, in the placement of a task's run."""
        for name, engine in ((ACTOR, self.weights), (CRITIC, self.decoder)):
            if engine is not None:
                yield name, renamed(first.roles[ACTOR], name, engine)


def renamed(role: Role, name: str, engine: SharedModule | OptimizerPath) -> Role:
    """Return a role of a checkpoint: a task's, or what tasks share."""
    return replace(
        role,
        name=name,
        arch=engine.arch,
        shard_map=engine.shard_map,
        trained_map=engine.trained_map,
        training=engine,
    )


class CriticHead(torch.nn.Module):
    """A critic's decoder with a head of its own, float32, that starts as the critic's.

    Args:
        critic: a `CriticModel`; its parameters are not this module's.

    Raises:
        ModelError: it has no `value_head`.
    """

    def __init__(self, critic: torch.nn.Module) -> None:
        super().__init__()
        head = getattr(critic, "value_head", None)
        if not isinstance(head, torch.nn.Linear) or head.bias is not None:
            raise ModelError(
                f"critic: {type(critic).__name__} has no value_head that is a Linear without bias, "
                "of which each task has its own; give a CriticModel"
            )
        self._critic = (critic,)
        self.value_head = _linear(head.weight.shape[-1], head.weight.device)
        self.value_head.weight.data.copy_(head.weight.detach())

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Values, (B, L) or (B, L, 1)."""
        (critic,) = self._critic
        head = self.value_head.weight.to(critic.get_parameter(VALUE_HEAD).dtype)
        values: torch.Tensor = functional_call(
            critic, {VALUE_HEAD: head}, (input_ids,), {"attention_mask": attention_mask}
        )
        return values


class ActorHead(torch.nn.Module):
    """A head, float32, that reads the actor's last hidden states; the actor does not learn from it.

    Args:
        actor: an `ActorModel` of a model of transformers.

    Raises:
        ModelError: the actor has no decoder that gives hidden states.
    """

    def __init__(self, actor: torch.nn.Module) -> None:
        super().__init__()
        _, model = model_in(actor)
        decoder = getattr(model, "base_model", None)
        if not isinstance(decoder, torch.nn.Module) or decoder is model:
            raise ModelError(
                f"value_head: actor: {type(model).__name__} has no decoder (base_model) that a "
                "head could read; set value_head: critic or none"
            )
        self._decoder = (decoder,)
        hidden = int(model.config.get_text_config().hidden_size)
        self.value_head = _linear(hidden, next(decoder.parameters()).device)

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Values, (B, L)."""
        (decoder,) = self._decoder
        with torch.no_grad():
            output = decoder(input_ids=input_ids, attention_mask=attention_mask, use_cache=False)
        values: torch.Tensor = self.value_head(output.last_hidden_state.float())[..., 0]
        return values


def _linear(hidden: int, device: torch.device) -> torch.nn.Linear:
    head = torch.nn.Linear(hidden, 1, bias=False, device=device)
    torch.nn.init.zeros_(head.weight)
    return head
