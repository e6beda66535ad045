"""FLOPs and sizes of a model's layers, by token and by squared sequence length."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from verl_hpc.layout.architecture import Architecture

BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True)
class LayerWork:
    """Work of one decoder layer, forward; multiply-adds count as two FLOPs."""

    flops_per_token: float
    """FLOPs of its matrices, including only the experts that a token uses."""
    flops_per_square: float
    """FLOPs of causal attention: a sequence of L tokens takes L^2 times this."""
    parameters: int
    """Elements of all its matrices."""
    expert_parameters: int
    """Elements of its experts' matrices."""
    mlp_share: float
    """Share of flops_per_token in the MLP."""
    expert_flops_per_token: float
    """FLOPs of the experts that a token uses; 0 without experts."""


@lru_cache(maxsize=64)
def _layer(sizes: tuple[int, ...]) -> LayerWork:
    hidden, ffn, q_size, kv_size, num_experts, per_token = sizes
    attention = hidden * (q_size + 2 * kv_size) + q_size * hidden
    mlp = 3 * hidden * ffn
    router, experts = hidden * num_experts, num_experts * mlp
    active = per_token * mlp if num_experts else mlp
    flops = 2.0 * (attention + router + active)
    # Scores and their sum of values: two products of L x L / 2 x q_size multiply-adds.
    return LayerWork(
        flops,
        2.0 * q_size,
        attention + router + (experts or mlp),
        experts,
        2.0 * active / flops,
        2.0 * active * (num_experts > 0),
    )


def layer_work(arch: Architecture) -> LayerWork:
    """Work of one of a model's layers."""
    return _layer(
        (
            arch.hidden_size,
            arch.ffn_size,
            arch.q_size,
            arch.kv_size,
            arch.num_experts,
            arch.experts_per_token,
        )
    )


def forward_flops(
    arch: Architecture, tokens: float, squares: float, with_logits: bool = True
) -> float:
    """FLOPs of a forward pass over sequences with this sum of tokens and of squared lengths."""
    layer = layer_work(arch)
    of_layers = arch.num_layers * (
        layer.flops_per_token * tokens + layer.flops_per_square * squares
    )
    return of_layers + with_logits * 2.0 * arch.hidden_size * arch.vocab_size * tokens
