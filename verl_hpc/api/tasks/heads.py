"""A value head for each task, on a decoder that they share."""

from __future__ import annotations

from typing import Any

import torch
from torch.func import functional_call

from verl_hpc.errors import ModelError
from verl_hpc.layout.heads import VALUE_HEAD


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
        found: torch.Tensor = functional_call(
            critic, {VALUE_HEAD: head}, (input_ids,), {"attention_mask": attention_mask}
        )
        return found


class ActorHead(torch.nn.Module):
    """A head, float32, that reads the actor's last hidden states; the actor does not learn from it.

    Args:
        actor: an `ActorModel` of a model of transformers.

    Raises:
        ModelError: the actor has no decoder that gives hidden states.
    """

    def __init__(self, actor: torch.nn.Module) -> None:
        super().__init__()
        model: Any = getattr(actor, "hf_model", actor)
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
