"""Adapters with values that all ranks know, and what they make of a model: obvious oracles."""

from __future__ import annotations

import re

import torch
import torch.distributed as dist

from tests.mpi.engines_for_tests import window
from verl_hpc.layout.adapters import a_of, b_of

WITHOUT = re.compile(r"\.lora_[AB]$")


def some_adapters(engine, seed: int = 0) -> dict[str, torch.Tensor]:
    """Whole logical tensors, the same on every rank; B is not zero."""
    found = {}
    for name, spec in engine.trained_map.tensors.items():
        if ".lora_" not in name:
            continue
        generator = torch.Generator().manual_seed(seed + sum(name.encode()) + 7919 * len(found))
        found[name] = torch.randn(spec.shape, generator=generator) * 0.1
    return found


def fill(engine, tensors: dict[str, torch.Tensor]) -> None:
    """Give the engine's parameters the values of logical tensors."""
    for region in engine.trained_map.held_by(dist.get_rank()):
        if region.tensor in tensors:
            window(engine.weights, region).copy_(tensors[region.tensor][region.box.slices])
    engine.weights_changed()


def merged(weight: torch.Tensor, name: str, adapters, scale: float) -> torch.Tensor:
    """In float32."""
    a, b = (adapters.get(f"{of(name)}.weight") for of in (a_of, b_of))
    if a is None:
        return weight
    return weight.float() + scale * (b.float() @ a.float())
