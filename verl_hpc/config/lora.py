"""Adapters of low rank, which train in place of a model's own weights."""

from __future__ import annotations

from typing import Literal

from pydantic import field_validator

from verl_hpc.section import PathText, Positive, PositiveFinite, Section


class LoraConfig(Section):
    """Adapters of low rank, added to linear layers whose own weights stay as they are: W x becomes
    W x + (alpha / rank) B A x (LoRA, arXiv 2106.09685). docs/adapters.md."""

    rank: Positive = 16
    """Rows of A, and columns of B (PEFT's r)."""
    alpha: PositiveFinite = 32.0
    """Numerator of the factor alpha / rank (PEFT's lora_alpha)."""
    target_modules: Literal["all-linear"] | list[str] = "all-linear"
    """Linear layers of a decoder layer that have adapters, by the last part of their names, such as
    [q_proj, v_proj]; all-linear is all of them, experts included. The embedding, the output layer
    and the router have none; with parallel.engine: fsdp experts have none either."""
    path: PathText | None = None
    """Directory of an adapter in PEFT's format to start from, whose rank, alpha and target_modules
    must be those given here. null starts from B = 0, so that the first model is model.path's."""
    share_base: bool = True
    """Whether the role's frozen weights are in memory once with those of another role that has
    adapters, where model, dtype, ranks, layout and offload.parameters are the same; false has a
    copy of its own, as each role of parallel.engine: fsdp has."""

    @field_validator("target_modules")
    @classmethod
    def _names_modules(cls, modules: str | list[str]) -> str | list[str]:
        if not modules:
            raise ValueError("names no module; leave it out for all-linear, or leave out lora")
        if isinstance(modules, list) and len(set(modules)) < len(modules):
            raise ValueError("names a module twice; name each once")
        return modules

    @property
    def targets(self) -> tuple[str, ...]:
        """Last parts of the target layers' names; empty for all linear layers."""
        return () if isinstance(self.target_modules, str) else tuple(self.target_modules)

    @property
    def scale(self) -> float:
        return self.alpha / self.rank
