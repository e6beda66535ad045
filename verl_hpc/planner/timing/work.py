"""FLOPs and sizes of a model's layers, by token and by squared sequence length."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from verl_hpc.layout.architecture import Architecture


@dataclass(frozen=True)
class LayerWork:
    """Work of one decoder layer, forward; multiply-adds count as two FLOPs. Where layers are of two
    kinds it is that of the mean one."""

    flops_per_token: float
    """FLOPs of its matrices, including only the experts that a token uses."""
    flops_per_square: float
    """FLOPs of causal attention: a sequence of L tokens takes L^2 times this."""
    parameters: float
    """Elements of all its matrices."""
    expert_parameters: float
    """Elements of its routed experts' matrices."""
    mlp_share: float
    """Share of flops_per_token in the MLP."""
    expert_flops_per_token: float
    """FLOPs of the routed experts that a token uses; 0 without experts."""


def layer_work(arch: Architecture) -> LayerWork:
    """Work of one of a model's layers."""
    return _layer(replace(arch, rope_scaling=None, published=None))


@lru_cache(maxsize=64)
def _layer(arch: Architecture) -> LayerWork:
    hidden, dense_share = arch.hidden_size, arch.num_dense_layers / arch.num_layers
    routed_share = (1 - dense_share) * (arch.num_experts > 0)
    attention = _attention_parameters(arch)
    expert, router = 3 * hidden * arch.ffn_size, routed_share * hidden * arch.num_experts
    experts = routed_share * arch.num_experts * expert
    active = routed_share * arch.experts_per_token * expert
    always = routed_share * arch.shared_ffn_size + dense_share * arch.dense_ffn_size
    dense = 3 * hidden * (always if arch.num_experts else arch.ffn_size)
    square = 1.0 * (arch.q_size + arch.o_size)
    windows = 2.0 * square * arch.window * (1 - arch.full_share)
    flops = 2.0 * (attention + router + active + dense) + windows
    return LayerWork(
        flops,
        # Scores and their sum of values: products of L x L / 2 x the sizes of keys and of values.
        square * arch.full_share,
        attention + router + experts + dense,
        experts,
        2.0 * (active + dense) / flops,
        2.0 * active,
    )


def _attention_parameters(arch: Architecture) -> int:
    output = arch.o_size * arch.hidden_size
    if arch.latent is None:
        return arch.hidden_size * (arch.q_size + 2 * arch.kv_size) + output
    queries = arch.q_rank or arch.hidden_size
    down = arch.hidden_size * (arch.q_rank + arch.kv_down_size)
    return down + queries * arch.q_size + arch.kv_rank * arch.kv_up_size + output


def forward_flops(
    arch: Architecture, tokens: float, squares: float, with_logits: bool = True
) -> float:
    """FLOPs of a forward pass over sequences with this sum of tokens and of squared lengths."""
    layer = layer_work(arch)
    of_layers = arch.num_layers * (
        layer.flops_per_token * tokens + layer.flops_per_square * squares
    )
    return of_layers + with_logits * 2.0 * arch.hidden_size * arch.vocab_size * tokens
