"""Sizes of blocks of a decoder layer that not every family has."""

from __future__ import annotations

from dataclasses import dataclass

from verl_hpc.layout.families import Family
from verl_hpc.layout.hf_config import HfConfig


@dataclass(frozen=True)
class LatentAttention:
    """Sizes of multi-latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1): keys and values
    of all heads are computed from one short vector of a token, the only one that a cache keeps.

    A head of a query or a key has `nope_size` elements without positions and `rope_size` rotated
    ones; those of the key are the same in all heads.
    """

    q_rank: int | None
    """Size of the vector that queries are computed from; None if they come from the hidden
    state."""
    kv_rank: int
    rope_size: int
    nope_size: int
    value_size: int
    """Elements of a head of the values."""


@dataclass(frozen=True)
class RouterShape:
    """What a router computes, besides a softmax over all experts and the choice of the largest."""

    sigmoid: bool = False
    """Whether a score is the sigmoid of its logit, and not a softmax over all of them."""
    num_groups: int = 1
    groups_per_token: int = 1
    """Groups of experts that a token may choose from, of `num_groups`."""
    scale: float = 1.0
    """Factor of the weights of the chosen experts."""
    has_bias: bool = False
    """Whether a bias, which is no parameter, is added to the scores for the choice alone."""


def latent_attention(fields: HfConfig, family: Family) -> LatentAttention | None:
    """Sizes that a `config.json` gives; None in a family that has other attention."""
    if not family.table.uses("kv_rank"):
        return None
    return LatentAttention(
        q_rank=fields.q_lora_rank,
        kv_rank=fields.kv_lora_rank or 0,
        rope_size=fields.qk_rope_head_dim or 0,
        nope_size=fields.qk_nope_head_dim or 0,
        value_size=fields.v_head_dim or 0,
    )


def router_shape(fields: HfConfig, family: Family) -> RouterShape:
    """The router that a `config.json` gives."""
    if not family.sigmoid_router:
        return RouterShape()
    return RouterShape(
        sigmoid=True,
        num_groups=fields.n_group or 1,
        groups_per_token=fields.topk_group or 1,
        scale=1.0 if fields.routed_scaling_factor is None else fields.routed_scaling_factor,
        has_bias=bool(family.table.buffers),
    )
