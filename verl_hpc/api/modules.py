"""What is asked of models and tokenizers that are handed over."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import torch
from transformers import PreTrainedConfig, PreTrainedModel

from verl_hpc.api.models import ActorModel, CriticModel, model_in
from verl_hpc.config.explain import shown
from verl_hpc.errors import ConfigError, ModelError
from verl_hpc.layout.architecture import Architecture, architecture_from

_WRAPPED = re.compile(r"_orig_mod\.|_fsdp_wrapped_module\.")
"""Prefixes of the names of a module's parameters behind torch.compile and FSDP."""


def names_of(module: torch.nn.Module) -> Mapping[str, str]:
    """Return the names of parameters in checkpoints by those in the module; one that is compiled or
    wrapped by FSDP has those of the module that it was made of."""
    named = getattr(module, "logical_names", None)
    known = named() if callable(named) else {}
    names = {}
    for name, _ in module.named_parameters():
        plain = _WRAPPED.sub("", name)
        names[name] = _WRAPPED.sub("", known.get(name, known.get(plain, plain)))
    return names


def check_apart(actor: torch.nn.Module, critic: torch.nn.Module | None) -> None:
    """Refuse models that cannot be trained apart.

    Raises:
        ModelError: nothing to train, parameters of both at once, or no forward as theirs.
    """
    for name, module in (("actor_model", actor), ("critic_model", critic)):
        if module is None:
            return
        if not any(p.requires_grad for p in module.parameters()):
            raise ModelError(
                f"{name}: {type(module).__name__} has no parameters that are trained; give it "
                "some, or set requires_grad"
            )
        try:
            inspect.signature(module.forward).bind(None, attention_mask=None)
        except ValueError:  # a traced module does not tell what it takes
            pass
        except TypeError:
            raise ModelError(
                f"{name}: {type(module).__name__} has no forward(input_ids, attention_mask), with "
                "which it is asked; give an ActorModel or CriticModel, or a subclass with one"
            ) from None
    critics = {id(p) for p in critic.parameters()} if critic is not None else set()
    shared = [name for name, p in actor.named_parameters() if id(p) in critics]
    if shared:
        raise ModelError(
            f"critic_model shares {shared[0]} with actor_model, so that the critic's updates "
            "would change the policy unseen; leave copy_weights of CriticModel True"
        )


def as_actor(model: Any, name: str = "actor_model") -> torch.nn.Module:
    """Return the module that is trained and generates.

    Args:
        name: what errors call it.

    Raises:
        ConfigError: vLLM's model, which has no gradients.
        ModelError: something else than a module with generate and parameters.
    """
    kind = type(model).__name__
    if getattr(model, "generates_only", False):
        raise ConfigError(
            f"{name} is a {kind}: vLLM computes no gradients, so that it generates and is not "
            "trained. Give the trainer an ActorModel; a run of `python -m verl_hpc train` with "
            "rollout.engine: vllm trains with Megatron-core and generates with vLLM in one process"
        )
    if not isinstance(model, torch.nn.Module):
        raise ModelError(f"{name} is {kind}; expected an ActorModel")
    if next(model.parameters(), None) is None:
        raise ModelError(
            f"{name}: {kind} has no parameters; make the model an attribute of it, as "
            "ActorModel(hf_model) does"
        )
    if not isinstance(model, ActorModel) and hasattr(model, "base_model"):
        return ActorModel(model)
    if not callable(getattr(model, "generate", None)):
        raise ModelError(
            f"{name}: {kind} has no generate(input_ids, **kwargs); make it a subclass of ActorModel"
        )
    return model


def as_critic(model: torch.nn.Module | None) -> torch.nn.Module | None:
    """Return the module that gives values: of a language model its decoder's copy with a head."""
    inner = getattr(model, "_orig_mod", model)
    if isinstance(inner, PreTrainedModel) and inner.get_output_embeddings() is not None:
        return CriticModel(inner)
    return model


def check_tokenizer(tokenizer: Any, who: str) -> None:
    """Raise ConfigError, which names `who` needs it, unless it is a tokenizer."""
    if tokenizer is None:
        raise ConfigError(f"{who}: tokenizer is needed; give that of the actor's model")
    if not callable(getattr(tokenizer, "decode", None)) or not hasattr(tokenizer, "eos_token_id"):
        given = shown(tokenizer) if isinstance(tokenizer, str) else type(tokenizer).__name__
        raise ConfigError(
            f"{who}: tokenizer is {given}; expected that of the actor's model, such as "
            "AutoTokenizer.from_pretrained(...)"
        )


def config_of(module: torch.nn.Module) -> PreTrainedConfig | None:
    """Return the config of a model of transformers; others may have one of another kind."""
    config = getattr(module, "config", None)
    return config if isinstance(config, PreTrainedConfig) else None


def architecture_of(module: torch.nn.Module) -> Architecture:
    """Return the sizes of a model of transformers; of another one as much as operators ask for."""
    config = config_of(module)
    if config is not None:
        with suppress(ModelError):  # a family that runs do not map
            return architecture_from(config.to_dict(), type(module).__name__)
    hidden = max((p.shape[-1] for p in module.parameters() if p.ndim > 1), default=1)
    return Architecture("module", 1, hidden, hidden, 1, 1, hidden, hidden, False)


def end_tokens(module: torch.nn.Module, tokenizer: Any) -> list[int]:
    """Return the tokens that end a response: the model's and the tokenizer's.

    Raises:
        ConfigError: neither names one.
    """
    _, inner = model_in(module)
    named = [tokenizer.eos_token_id]
    for settings in (getattr(inner, "generation_config", None), getattr(inner, "config", None)):
        ends = getattr(settings, "eos_token_id", None)
        named += ends if isinstance(ends, list) else [ends]
    tokens = sorted({end for end in named if end is not None})
    if not tokens:
        raise ConfigError(
            "tokenizer: it names no eos_token, nor does the model, so that no response would end; "
            "set tokenizer.eos_token"
        )
    return tokens


def device_of(module: torch.nn.Module) -> torch.device:
    """Return the device of the first parameter."""
    return next(module.parameters()).device
