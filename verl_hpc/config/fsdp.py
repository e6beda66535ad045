"""Settings of the training engine that shards parameters with PyTorch's fully_shard."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from verl_hpc.section import Section

CUDA_GRAPH_MODES = ("reduce-overhead", "max-autotune")
"""Modes of torch.compile that replay CUDA graphs."""


def _without_graphs(mode: object) -> object:
    if mode in CUDA_GRAPH_MODES:
        raise ValueError(
            "this mode of torch.compile replays CUDA graphs. Of those it records one for every "
            "number of tokens, and packed rows have all; and a graph reads weights where they lay "
            "when it was recorded, while fully_shard gathers them anew for every pass. Choose "
            "default, or none"
        )
    return mode


Compile = Annotated[Literal["none", "default"], BeforeValidator(_without_graphs)]


class FsdpConfig(Section):
    """How fully_shard shares a model between its ranks (PyTorch's FSDP2)."""

    shard_size: int | None = Field(default=None, ge=1)
    """Number of neighbouring ranks that divide the parameters; other groups of this size hold
    copies (hybrid sharding, PyTorch's HSDP). Gathers then stay among neighbours, such as those of a
    node. null divides over all ranks of the role."""
    forward_prefetch: bool = False
    """Whether a layer's gather is asked for before the layer ahead of it computes, in forward
    passes; else when it is reached. In backward passes it always is."""
    reshard_after_forward: bool = True
    """Whether a layer's gathered parameters are freed after its forward pass and gathered once more
    for the backward pass (ZeRO-3, arXiv 1910.02054), or kept between the two."""
    reduce_dtype: Literal["float32", "bfloat16"] = "float32"
    """Element type in which gradients are summed over ranks."""
    compile: Compile = "none"
    """default compiles each layer with torch.compile, all but its attention; on GPUs alone."""
    kernels: Literal["auto", "flash_attention", "torch"] = "auto"
    """auto takes FlashAttention and Liger's norms and SwiGLU on GPUs where they are installed and
    model.dtype is bfloat16; flash_attention leaves Liger's alone, torch both. facts.json records
    the choice."""
