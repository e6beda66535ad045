"""Checks of section roles."""

from __future__ import annotations

from verl_hpc.config.explain import near_or_all
from verl_hpc.config.role import RoleConfig
from verl_hpc.config.roles import (
    FIRST_OF,
    default_head,
    is_trained,
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
