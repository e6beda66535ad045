"""What is asked of models and tokenizers that are handed over."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from transformers import PreTrainedConfig, PreTrainedModel

from verl_hpc.api.models import ActorModel, CriticModel
from verl_hpc.config.explain import shown
from verl_hpc.errors import ConfigError, ModelError
from verl_hpc.layout.architecture import Architecture, architecture_from

_COMPILED = "_orig_mod."
"""What torch.compile puts before the names of a module's parameters."""


def names_of(module: torch.nn.Module) -> Mapping[str, str]:
    """Names of its parameters in checkpoints by those in the module; a compiled one has those of
    the module that it was made of."""
    named = getattr(module, "logical_names", None)
    known = named() if callable(named) else {}
    found = {}
    for name, _ in module.named_parameters():
        plain = name.replace(_COMPILED, "")
        found[name] = known.get(name, known.get(plain, plain)).replace(_COMPILED, "")
    return found


def check_apart(
    actor: torch.nn.Module,
    critic: torch.nn.Module | None,
    said: str = "actor_model",
    critic_said: str = "critic_model",
) -> None:
    """Refuse models that cannot be trained apart.

    Args:
        said, critic_said: what errors call them.

    Raises:
        ModelError: nothing to train, parameters of both at once, or no forward as theirs.
    """
    for name, module in ((said, actor), (critic_said, critic)):
        if module is not None and not any(p.requires_grad for p in module.parameters()):
            raise ModelError(
                f"{name}: {type(module).__name__} has no parameters that are trained; give it "
                "some, or set requires_grad"
            )
        if module is not None:
            _check_forward(name, module)
    if critic is None:
        return
    mine = {id(p): name for name, p in critic.named_parameters()}
    shared = [name for name, p in actor.named_parameters() if id(p) in mine]
    if shared:
        raise ModelError(
            f"{critic_said} shares {shared[0]} with {said}, so that the critic's updates would "
            "change the policy unseen; leave copy_weights of CriticModel True"
        )


def _check_forward(said: str, module: torch.nn.Module) -> None:
    try:
        inspect.signature(module.forward).bind(None, attention_mask=None)
    except TypeError:
        raise ModelError(
            f"{said}: {type(module).__name__} has no forward(input_ids, attention_mask), with "
            "which it is asked; give an ActorModel or CriticModel, or a subclass with one"
        ) from None
    except ValueError:  # it does not tell
        return


def as_actor(model: Any, said: str = "actor_model") -> torch.nn.Module:
    """The module that is trained and generates.

    Args:
        said: what errors call it.

    Raises:
        ConfigError: vLLM's model, which has no gradients.
        ModelError: something else than a module with generate and parameters.
    """
    if not isinstance(model, torch.nn.Module):
        if getattr(model, "generates_only", False):
            raise ConfigError(
                f"{said} is a {type(model).__name__}: vLLM computes no gradients, so that it "
                "generates and is not trained. Give the trainer an ActorModel; a run of "
                "`python -m verl_hpc train` with rollout.engine: vllm trains with Megatron-core "
                "and generates with vLLM in one process"
            )
        raise ModelError(f"{said} is {type(model).__name__}; expected an ActorModel")
    if next(model.parameters(), None) is None:
        raise ModelError(
            f"{said}: {type(model).__name__} has no parameters; make the model an attribute of it, "
            "as ActorModel(hf_model) does"
        )
    if not isinstance(model, ActorModel) and hasattr(model, "base_model"):
        return ActorModel(model)
    if not callable(getattr(model, "generate", None)):
        raise ModelError(
            f"{said}: {type(model).__name__} has no generate(input_ids, **kwargs); make it a "
            "subclass of ActorModel"
        )
    return model


def as_critic(model: torch.nn.Module | None) -> torch.nn.Module | None:
    """The module that gives values: of a language model its decoder's copy with a head."""
    inner = getattr(model, "_orig_mod", model)
    if isinstance(inner, PreTrainedModel) and inner.get_output_embeddings() is not None:
        return CriticModel(inner)
    return model


def check_tokenizer(tokenizer: Any, who: str) -> None:
    """Raises: ConfigError: it is none."""
    if tokenizer is None:
        raise ConfigError(f"{who}: tokenizer is needed; give that of the actor's model")
    if not callable(getattr(tokenizer, "decode", None)) or not hasattr(tokenizer, "eos_token_id"):
        given = shown(tokenizer) if isinstance(tokenizer, str) else type(tokenizer).__name__
        raise ConfigError(
            f"{who}: tokenizer is {given}; expected that of the actor's model, such as "
            "AutoTokenizer.from_pretrained(...)"
        )


def config_of(module: torch.nn.Module) -> PreTrainedConfig | None:
    """Of a model of transformers; others, such as Megatron's, have one of another kind."""
    found = getattr(module, "config", None)
    return found if isinstance(found, PreTrainedConfig) else None


def architecture_of(module: torch.nn.Module) -> Architecture:
    """Of a model of transformers; of another one as much as operators ask for."""
    config = config_of(module)
    if config is None:
        widths = [p.shape[-1] for p in module.parameters() if p.ndim > 1]
        hidden = max(widths, default=1)
        return Architecture("module", 1, hidden, hidden, 1, 1, hidden, hidden, False)
    try:
        return architecture_from(config.to_dict(), type(module).__name__)
    except ModelError:
        text = config.get_text_config()
        hidden, heads = text.hidden_size, text.num_attention_heads
        inner = getattr(text, "intermediate_size", None) or 4 * hidden
        return Architecture(
            text.model_type,
            text.num_hidden_layers,
            hidden,
            inner,
            heads,
            getattr(text, "num_key_value_heads", None) or heads,
            hidden // heads,
            text.vocab_size,
            bool(config.tie_word_embeddings),
        )


def end_tokens(module: torch.nn.Module, tokenizer: Any) -> list[int]:
    """Tokens that end a response: the model's and the tokenizer's.

    Raises:
        ConfigError: neither names one.
    """
    inner = getattr(module, "hf_model", module)
    found = [tokenizer.eos_token_id]
    for settings in (getattr(inner, "generation_config", None), getattr(inner, "config", None)):
        named = getattr(settings, "eos_token_id", None)
        found += named if isinstance(named, list) else [named]
    ends = sorted({end for end in found if end is not None})
    if not ends:
        raise ConfigError(
            "tokenizer: it names no eos_token, nor does the model, so that no response would end; "
            "set tokenizer.eos_token"
        )
    return ends


def device_of(module: torch.nn.Module) -> torch.device:
    first = next(module.parameters(), None)
    return first.device if first is not None else torch.device("cpu")
