"""Actor and critic around models of transformers, as verl's tutorials have them."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from transformers import PreTrainedModel

from verl_hpc.api.mesh import DeviceMesh, check_mesh
from verl_hpc.errors import ModelError
from verl_hpc.layout.heads import VALUE_HEAD


class ActorModel(torch.nn.Module):
    """A policy: an `AutoModelForCausalLM`, or any module with its `forward` and `generate`.

    A subclass may have its own `forward(input_ids, attention_mask)`, which gives logits or an
    output that has them as `.logits`, and its own `generate(input_ids, **kwargs)`, which gives
    tokens (B, prompt and response) or what transformers' gives.

    Args:
        hf_model: the model; it is trained where it is, no copy is made.
    """

    def __init__(self, hf_model: torch.nn.Module) -> None:
        super().__init__()
        if not isinstance(hf_model, torch.nn.Module):
            raise ModelError(
                f"{type(self).__name__}: hf_model is {type(hf_model).__name__}; expected an "
                "AutoModelForCausalLM (get_actor_critic loads one by name)"
            )
        self.hf_model = hf_model
        self.tp_mesh: DeviceMesh | None = None
        self.pp_mesh: DeviceMesh | None = None

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None) -> Any:
        """Logits of the next token, (B, L, vocabulary), or an output that has them."""
        return self.hf_model(input_ids=input_ids, attention_mask=attention_mask)

    def generate(self, input_ids: torch.Tensor, **kwargs: Any) -> Any:
        """Prompts with their responses: transformers' generate."""
        return self.hf_model.generate(input_ids=input_ids, **kwargs)  # type: ignore[operator]

    @property
    def config(self) -> Any:
        """Of the model, None where it has none."""
        return getattr(self.hf_model, "config", None)

    def set_device_mesh(
        self, tp_mesh: DeviceMesh | None = None, pp_mesh: DeviceMesh | None = None
    ) -> None:
        """Bind the model to the groups that share it, which in one process are of one rank.

        Raises:
            ConfigError: a mesh of another kind, or of several ranks, with what serves instead.
        """
        check_mesh(tp_mesh, "tensor", "tp_mesh")
        check_mesh(pp_mesh, "pipeline", "pp_mesh")
        self.tp_mesh, self.pp_mesh = tp_mesh, pp_mesh

    def logical_names(self) -> Mapping[str, str]:
        """Names that parameters have in the model's own checkpoint, by those here."""
        return _names(self, "hf_model")


class CriticModel(torch.nn.Module):
    """A value for each token: a model's decoder with a head of one output, which starts at zero.

    A subclass may have its own `forward(input_ids, attention_mask)` that gives values, (B, L) or
    (B, L, 1).

    Args:
        hf_model: an `AutoModelForCausalLM`; its lm_head is not used.
        copy_weights: take a copy of the decoder, so that actor and critic may be given the same
            model and are trained apart. False trains `hf_model`'s own.
    """

    def __init__(self, hf_model: PreTrainedModel, copy_weights: bool = True) -> None:
        super().__init__()
        decoder = getattr(hf_model, "base_model", None)
        if not isinstance(decoder, torch.nn.Module) or decoder is hf_model:
            raise ModelError(
                f"{type(self).__name__}: hf_model is {type(hf_model).__name__}, which has no "
                "decoder (base_model) to put a value head on; expected an AutoModelForCausalLM"
            )
        self.config = hf_model.config
        self._prefix = str(hf_model.base_model_prefix)
        self.decoder = copy.deepcopy(decoder) if copy_weights else decoder
        text = self.config.get_text_config()
        first = next(decoder.parameters())
        self.value_head = torch.nn.Linear(
            text.hidden_size, 1, bias=False, dtype=first.dtype, device=first.device
        )
        torch.nn.init.zeros_(self.value_head.weight)

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Values, (B, L)."""
        output = self.decoder(input_ids=input_ids, attention_mask=attention_mask, use_cache=False)
        values: torch.Tensor = self.value_head(output.last_hidden_state)[..., 0]
        return values

    def logical_names(self) -> Mapping[str, str]:
        """Names that parameters have in checkpoints, by those here."""
        found = {name: f"{self._prefix}.{rest}" for name, rest in _names(self, "decoder").items()}
        own = {name for name, _ in self.named_parameters() if not name.startswith("decoder.")}
        return found | {n: VALUE_HEAD if n == "value_head.weight" else n for n in own}


def _names(module: torch.nn.Module, inner: str) -> dict[str, str]:
    names = (name for name, _ in module.named_parameters())
    return {name: name.removeprefix(f"{inner}.") for name in names}
