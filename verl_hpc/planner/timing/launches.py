"""Operations that the host dispatches for a micro-batch: however few its tokens are, the device
waits for them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from verl_hpc.planner.shape import RoleShape


class Passage(NamedTuple):
    """Operations in a forward pass, and in the forward and backward pass of an update: kernels,
    collectives and allocations, without views."""

    forward: int
    update: int


PER_LAYER: Mapping[str, Passage] = {
    "dense": Passage(25, 60),
    "fp8": Passage(31, 85),
    "experts": Passage(62, 121),
    "shared experts": Passage(71, 150),
    "latent attention": Passage(117, 239),
    "adapters": Passage(69, 164),
    "context parallelism": Passage(71, 150),
    "fsdp": Passage(60, 195),
}
"""Operations of one layer for one micro-batch; tests/dry_gpu/test_operations.py counts them on a
GPU that is not there. All but those of fsdp are with tensor and sequence parallelism and
Transformer Engine's layers. "shared experts" are those of GLM-4.5, "latent attention" is that of
DeepSeek-V3 with its experts. "fsdp" is a dense model in transformers' layers; a mixture with fsdp
has not been counted and is taken for one."""
OUTSIDE = Passage(115, 219)
"""Operations outside the layers, of 4,096 tokens and the logits of Qwen3-8B on two ranks; counted
there, too."""

MOST_SHARE = 0.5
"""Largest share of the device's time for which the host may dispatch in a run that is not bound by
launches: a core that is half as fast, or interrupted, still keeps the device busy."""


def of_a_layer(model: RoleShape) -> Passage:
    """Operations of one layer for one micro-batch."""
    if model.is_sharded:
        return PER_LAYER["fsdp"]
    base = PER_LAYER[_mixture(model) if model.arch.is_moe else "dense"]
    added = {
        "fp8": model.fp8 is not None,
        "adapters": model.adapters is not None,
        "context parallelism": model.layout.cp > 1,
    }
    dense = PER_LAYER["dense"]
    more = [PER_LAYER[name] for name, has in added.items() if has]
    return Passage(
        base.forward + sum(row.forward - dense.forward for row in more),
        base.update + sum(row.update - dense.update for row in more),
    )


def _mixture(model: RoleShape) -> str:
    if model.arch.latent is not None:
        return "latent attention"
    return "shared experts" if model.arch.shared_ffn_size else "experts"
