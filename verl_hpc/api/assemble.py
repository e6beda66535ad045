"""A run of one process around models that are there already: what `PPOTrainer` drives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import PreTrainedModel

from verl_hpc.algorithms.kl import KlController
from verl_hpc.api.models import ActorModel, CriticModel
from verl_hpc.api.prompts import IdTokenizer, StepPrompts
from verl_hpc.config.explain import shown
from verl_hpc.config.roles import ACTOR, CRITIC, RoleSettings
from verl_hpc.config.run import RunConfig
from verl_hpc.data.order import Order
from verl_hpc.engines.module import ModuleEngine
from verl_hpc.engines.protocol import InferenceEngine
from verl_hpc.errors import ConfigError, ModelError
from verl_hpc.layout.architecture import Architecture, architecture_from
from verl_hpc.planner.layouts import ROLLOUT, RunLayouts, place_roles
from verl_hpc.rewards.scorer import Scorer
from verl_hpc.rollout.constraint import Constraint
from verl_hpc.rollout.module import ModuleRollout
from verl_hpc.runtime.one_rank import local_session
from verl_hpc.trainer.context import RunContext
from verl_hpc.trainer.exchange import Controls
from verl_hpc.trainer.placement import Placement
from verl_hpc.trainer.problems import Problems
from verl_hpc.trainer.role import FirstWeights, Role, Rollout


@dataclass(frozen=True)
class Given:
    """What a run is given that has its actor in common with others."""

    engines: Mapping[str, ModuleEngine] = field(default_factory=dict)
    """By role; the others are built on their modules."""
    reference: InferenceEngine | None = None
    """None keeps a copy of the actor's weights."""
    constraint: Constraint | None = None
    """Restricts what is sampled."""


def assemble(
    config: RunConfig,
    actor: torch.nn.Module,
    critic: torch.nn.Module | None,
    tokenizer: Any,
    prompts: StepPrompts,
    reward: Scorer,
    given: Given | None = None,
) -> RunContext:
    """A run of one rank: the modules are its roles' engines, the actor also generates.

    Args:
        given: what it has in common with other runs.

    Raises:
        ModelError: a module has no parameters to train, or both share some.
    """
    device = device_of(actor)
    check_apart(actor, critic)
    given = given or Given()
    session = local_session(device=str(device))
    layouts = place_roles(config, 1)
    places = {
        pool.name: Placement(pool, 0, session.control, device) for pool in layouts.pools.values()
    }
    modules = {ACTOR: actor, **({CRITIC: critic} if critic is not None else {})}
    arch = sizes_of(actor)
    run = RunContext(
        session,
        config,
        arch,
        layouts,
        Controls(session.control),
        places,
        _roles(config.role_settings, layouts, places, modules, device, given),
        {},
        IdTokenizer(tokenizer),  # type: ignore[arg-type]
        Problems(prompts, {}, {}),
        Order(1, config.seed, False),
        reward=reward,
    )
    kl = config.algorithm.kl
    run.kl = KlController(kl.coefficient)
    engine = run.roles[ACTOR].trained
    generator = ModuleRollout(
        actor,
        end_tokens(actor, tokenizer),
        config.rollout,
        engine.weights,
        engine.shard_map,
        given.constraint,
    )
    run.rollout = Rollout(
        places[ROLLOUT],
        generator.shard_map,
        generator,
        replica_control=session.control,
        allowed_bytes=0 if given.constraint is None else -(-arch.vocab_size // 8),
    )
    return run


def _roles(
    settings: Mapping[str, RoleSettings],
    layouts: RunLayouts,
    places: Mapping[str, Placement],
    modules: Mapping[str, torch.nn.Module],
    device: torch.device,
    given: Given,
) -> dict[str, Role]:
    roles: dict[str, Role] = {}
    for name, role in settings.items():
        place = places[layouts.pool_of[name]]
        if role.shares:
            owner = roles[role.shares]
            engine = owner.trained
            roles[name] = Role(
                name, role, place, owner.arch, engine.layout, engine.shard_map, engine.trained_map
            )
            roles[name].shared = given.reference or FirstWeights(engine)
            continue
        engine = given.engines.get(name) or ModuleEngine(
            modules[name],
            sizes_of(modules[name]),
            role.head,
            role.optimizer,
            device,
            names=names_of(modules[name]),
        )
        roles[name] = Role(
            name,
            role,
            place,
            engine.arch,
            engine.layout,
            engine.shard_map,
            engine.trained_map,
            training=engine,
        )
    return roles


def names_of(module: torch.nn.Module) -> Mapping[str, str] | None:
    """Names of its parameters in checkpoints by those in the module, where they differ."""
    named = getattr(module, "logical_names", None)
    return named() if callable(named) else None


def check_apart(actor: torch.nn.Module, critic: torch.nn.Module | None) -> None:
    """Raises: ModelError: nothing to train, or parameters of both at once."""
    for name, module in (("actor_model", actor), ("critic_model", critic)):
        if module is not None and not any(p.requires_grad for p in module.parameters()):
            raise ModelError(
                f"{name}: {type(module).__name__} has no parameters that are trained; give it "
                "some, or set requires_grad"
            )
    if critic is None:
        return
    mine = {id(p): name for name, p in critic.named_parameters()}
    shared = [name for name, p in actor.named_parameters() if id(p) in mine]
    if shared:
        raise ModelError(
            f"critic_model shares {shared[0]} with actor_model, so that the critic's updates would "
            "change the policy unseen; leave copy_weights of CriticModel True"
        )


def as_actor(model: Any) -> torch.nn.Module:
    """The module that is trained and generates.

    Raises:
        ConfigError: vLLM's model, which has no gradients.
        ModelError: something else than a module with generate.
    """
    if not isinstance(model, torch.nn.Module):
        if getattr(model, "generates_only", False):
            raise ConfigError(
                f"actor_model is a {type(model).__name__}: vLLM computes no gradients, so that it "
                "generates and is not trained. Give the trainer an ActorModel; a run of "
                "`python -m verl_hpc train` with rollout.engine: vllm trains with Megatron-core "
                "and generates with vLLM in one process"
            )
        raise ModelError(f"actor_model is {type(model).__name__}; expected an ActorModel")
    if not isinstance(model, ActorModel) and hasattr(model, "base_model"):
        return ActorModel(model)
    if not callable(getattr(model, "generate", None)):
        raise ModelError(
            f"actor_model: {type(model).__name__} has no generate(input_ids, **kwargs); make it a "
            "subclass of ActorModel"
        )
    return model


def as_critic(model: torch.nn.Module | None) -> torch.nn.Module | None:
    """The module that gives values: of a language model its decoder's copy with a head."""
    if isinstance(model, PreTrainedModel) and model.get_output_embeddings() is not None:
        return CriticModel(model)
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


def sizes_of(module: torch.nn.Module) -> Architecture:
    """Of a model of transformers; of another one as much as operators ask for."""
    config = getattr(module, "config", None)
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
