"""Adapters of low rank, which train in place of a model's own weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import field_validator

from verl_hpc.section import PathText, Positive, PositiveFinite, Section

if TYPE_CHECKING:
    from verl_hpc.config.run import RunConfig


class LoraConfig(Section):
    """Adapters of low rank beside linear layers whose own weights stay as they are: W x becomes
    W x + (alpha / rank) B A x (LoRA, arXiv 2106.09685). docs/adapters.md."""

    rank: Positive = 16
    """Rows of A, and columns of B (PEFT's r)."""
    alpha: PositiveFinite = 32.0
    """Of the factor alpha / rank (PEFT's lora_alpha)."""
    target_modules: Literal["all-linear"] | list[str] = "all-linear"
    """Which linear layers of a decoder layer have adapters, by the last part of their names, such
    as [q_proj, v_proj]; all-linear is all of them, experts included. The embedding, the output
    layer and the router have none."""
    path: PathText | None = None
    """Directory of an adapter in PEFT's format to start from, whose rank, alpha and target_modules
    must be those given here. null starts from B = 0, so that the first model is model.path's."""
    share_base: bool | None = None
    """Whether the role's frozen weights are in memory once with those of another role that has
    adapters. null: where model, dtype, ranks, layout and offload.parameters are the same. true
    refuses what cannot be shared, false has a copy of its own."""

    @field_validator("target_modules")
    @classmethod
    def _names_modules(cls, found: str | list[str]) -> str | list[str]:
        if not found:
            raise ValueError("names no module; leave it out for all-linear, or leave out lora")
        if isinstance(found, list) and len(set(found)) < len(found):
            raise ValueError("names a module twice; name each once")
        return found

    @property
    def targets(self) -> tuple[str, ...]:
        """Last parts of names; none for all linear layers."""
        return () if isinstance(self.target_modules, str) else tuple(self.target_modules)

    @property
    def scale(self) -> float:
        return self.alpha / self.rank


def check_lora(config: RunConfig) -> None:
    """Raises: ValueError: adapters where they cannot be honoured, or have no effect."""
    for name, settings in config.role_settings.items():
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


def _check_first(config: RunConfig, name: str, owner: str) -> None:
    """A role that is another one as it was at the start, in an engine of its own."""
    lora = config.role_settings[owner].lora
    role = config.roles.get(name)
    if lora is not None and lora.path is not None and (role is None or role.path is None):
        raise ValueError(
            f"lora.path with a {name} that has an engine of its own: it would have to start from "
            f"the adapter, too, which only one that shares the {owner}'s engine does; leave out "
            f"the {name}'s dtype, parallel and placement, or give it a path: a merged model"
        )
