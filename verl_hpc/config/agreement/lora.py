"""Checks of adapters of low rank (LoRA)."""

from __future__ import annotations

from verl_hpc.config.roles import role_settings
from verl_hpc.config.sections import RunSections


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
