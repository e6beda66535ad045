"""Checks of section roles, of adapters of low rank, and of roles whose parallel.engine is fsdp."""

from __future__ import annotations

from verl_hpc.config.agreement import refuse
from verl_hpc.config.explain import near_or_all
from verl_hpc.config.model import OR_MEGATRON
from verl_hpc.config.role import RoleConfig
from verl_hpc.config.roles import (
    FIRST_OF,
    default_head,
    is_trained,
    role_settings,
    roles_of_recipe,
    shares_engine,
    trained_by_recipe,
)
from verl_hpc.config.sections import RunSections

_NOT_ROLES = ("train", "rollout", "scoring")


def check_roles(config: RunSections) -> None:
    """Raises: ValueError: a role that no operator of the recipe uses, or of a reserved name, or a
    setting that its role cannot have."""
    used = roles_of_recipe(config)
    for name, role in config.roles.items():
        if name in _NOT_ROLES:
            raise ValueError(
                f"roles.{name}: no role can have this name, which is a label's; choose another"
            )
        if name not in used:
            raise ValueError(
                f"roles.{name}: no operator of recipe {config.recipe} uses this role; "
                f"{near_or_all(name, used, 'roles')}"
            )
        if not config.has_own_recipe:
            _check_built_in(config, name, role)
        if role.optimizer is not None and not is_trained(config, name):
            raise ValueError(
                f"roles.{name}.optimizer: this role is not trained; leave it out, or set "
                f"roles.{name}.trainable: true"
            )
        if FIRST_OF.get(name) in used and shares_engine(config, name):
            _check_shared(name, role)


def _check_built_in(config: RunSections, name: str, role: RoleConfig) -> None:
    """Check the head and trainable of a role against a built-in recipe."""
    head, trained = default_head(name), trained_by_recipe(config, name)
    if role.head not in (None, head):
        raise ValueError(
            f"roles.{name}.head = {role.head}: recipe {config.recipe} needs {head} here; leave it "
            "out, or give the model to another role"
        )
    if role.trainable not in (None, trained):
        wanted = "trains this role" if trained else "does not train this role"
        raise ValueError(
            f"roles.{name}.trainable = {str(role.trainable).lower()}: recipe {config.recipe} "
            f"{wanted}; leave it out, or write a recipe of your own (docs/recipes.md)"
        )


def _check_shared(name: str, role: RoleConfig) -> None:
    owner = FIRST_OF[name]
    for setting in ("head", "offload"):
        if getattr(role, setting) is not None:
            raise ValueError(
                f"roles.{name}.{setting}: the {name} computes in the {owner}'s engine; set "
                f"roles.{owner}.{setting}, or give the {name} a path, parallel or placement "
                "of its own"
            )


def check_lora(config: RunSections) -> None:
    """Raises: ValueError: adapters where they cannot be honoured, or have no effect."""
    for name, settings in role_settings(config).items():
        chosen = config.roles[name].lora if name in config.roles else None
        if chosen is not None and settings.optimizer is None:
            raise ValueError(
                f"roles.{name}.lora: this role is not trained; leave it out, or set "
                f"roles.{name}.trainable: true"
            )
        if chosen == "none" and config.lora is None:
            raise ValueError(
                f"roles.{name}.lora = none, and no section lora gives it adapters; leave it out"
            )
        if settings.lora is not None and settings.optimizer and settings.model.fp8 is not None:
            raise ValueError(
                "model.fp8 with lora: products of adapters are computed in model.dtype, and a "
                "frozen weight's FP8 copies are not kept for them; leave one of the two out"
            )
        if settings.first_of is not None:
            _check_first(config, name, settings.first_of)


def _check_first(config: RunSections, name: str, owner: str) -> None:
    """Check a role that starts as a copy of `owner` in an engine of its own."""
    lora = role_settings(config)[owner].lora
    role = config.roles.get(name)
    if lora is not None and lora.path is not None and (role is None or role.path is None):
        raise ValueError(
            f"lora.path with a {name} that has an engine of its own: it would have to start from "
            f"the adapter, too, which only one that shares the {owner}'s engine does; leave out "
            f"the {name}'s dtype, parallel and placement, or give it a path: a merged model"
        )


def check_fsdp_roles(config: RunSections) -> None:
    """Raises: ValueError: a role with engine = fsdp asks for what only the other engine has."""
    settings = role_settings(config)
    first = next(iter(settings))
    for name, role in settings.items():
        if role.parallel.engine != "fsdp":
            continue
        given = {
            "model.fp8": role.model.fp8 is not None,
            "model.router": role.model.router is not None,
            "optimizer.moments = bfloat16": role.moments != "float32",
            "algorithm.router_replay = rollout": config.replays_experts,
            "rollout.quantization": name == first and config.rollout.quantization is not None,
        }
        refuse(
            given,
            f" with parallel.engine = fsdp of the {name}: only Megatron-core does that here; leave "
            f"it out, {OR_MEGATRON}",
        )
