"""Actor and critic around models of transformers, as verl's tutorials have them."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from transformers import PreTrainedModel

from verl_hpc.errors import ConfigError, ModelError
from verl_hpc.layout.heads import VALUE_HEAD


@dataclass(frozen=True)
class DeviceMesh:
    """A process group, and what its ranks share: tensor or pipeline."""

    kind: str
    group: Any = None
    """A group of torch.distributed, or None for this rank alone."""


class ActorModel(torch.nn.Module):
    """A policy: an `AutoModelForCausalLM`, or any module with its `forward` and `generate`.

    A subclass may have its own `forward(input_ids, attention_mask)`, which gives logits or an
    output that has them as `.logits`, and its own `generate(input_ids, **kwargs)`, which gives
    tokens (B, prompt and response) or what transformers' gives.

    Args:
        hf_model: the model; it is trained where it is, no copy is made. A subclass may leave it
            out, and set `model`, or with its own `forward` and `generate` another attribute.
    """

    def __init__(self, hf_model: torch.nn.Module | None = None) -> None:
        super().__init__()
        if not isinstance(hf_model, torch.nn.Module | None):
            raise ModelError(
                f"{type(self).__name__}: hf_model is {type(hf_model).__name__}; expected an "
                "AutoModelForCausalLM (get_actor_critic loads one by name)"
            )
        if any(kind.__module__.startswith("megatron.") for kind in type(hf_model).__mro__):
            raise ModelError(
                f"{type(self).__name__}: hf_model is Megatron-core's {type(hf_model).__name__}, "
                "which asks for position_ids and has parts of weights on each rank. Give the model "
                "of transformers; a run with parallel.engine: megatron cuts its checkpoint for "
                "Megatron-core by itself (docs/models.md)"
            )
        if hf_model is not None:
            self.model = hf_model
        self.tp_mesh: DeviceMesh | None = None
        self.pp_mesh: DeviceMesh | None = None

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__("model" if name == "hf_model" else name, value)

    @property
    def hf_model(self) -> Any:
        """The model, which tutorials also call `model`; both may be replaced."""
        return self.model

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None) -> Any:
        """Logits of the next token, (B, L, vocabulary), or an output that has them."""
        return self.model(input_ids=input_ids, attention_mask=attention_mask)

    def generate(self, input_ids: torch.Tensor, **kwargs: Any) -> Any:
        """Prompts with their responses: transformers' generate."""
        return self.model.generate(input_ids=input_ids, **kwargs)  # type: ignore[operator]

    @property
    def config(self) -> Any:
        """The model's config, None where it has none."""
        return getattr(model_in(self)[1], "config", None)

    def set_device_mesh(
        self, tp_mesh: DeviceMesh | None = None, pp_mesh: DeviceMesh | None = None
    ) -> None:
        """Bind the model to the groups that share it, which in one process are of one rank.

        Raises:
            ConfigError: a group of several ranks, with what serves instead.
        """
        for kind, mesh in {"tensor": tp_mesh, "pipeline": pp_mesh}.items():
            size = 1 if mesh is None or mesh.group is None else mesh.group.size()
            if size != 1:
                raise ConfigError(
                    f"set_device_mesh: the {kind} group has {size} ranks, and a model that is "
                    "handed over in Python has whole weights in one process; set parallel."
                    f"{kind}_parallel: {size} in a run's YAML and start it with `python -m "
                    f"verl_hpc train --ranks {size}`, srun or mpiexec, which cut the model and "
                    "make the groups"
                )
        self.tp_mesh, self.pp_mesh = tp_mesh, pp_mesh

    def logical_names(self) -> Mapping[str, str]:
        """Names that parameters have in the model's own checkpoint, by those here."""
        return _names(self, model_in(self)[0])


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
        names = {}
        for name, plain in _names(self, "decoder").items():
            names[name] = f"{self._prefix}.{plain}" if plain != name else name
        return names | {"value_head.weight": VALUE_HEAD}


def model_in(actor: torch.nn.Module) -> tuple[str, Any]:
    """Return the name and the module of the model that an actor is around; with none the actor."""
    actor = getattr(actor, "_orig_mod", actor)
    for name, child in actor.named_children() if isinstance(actor, ActorModel) else ():
        if any(True for _ in child.parameters()):
            return name, child
    return "", actor


def _names(module: torch.nn.Module, inner: str) -> dict[str, str]:
    names = (name for name, _ in module.named_parameters())
    return {name: name.removeprefix(f"{inner}.") for name in names}
