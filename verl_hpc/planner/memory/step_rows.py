"""Cut of a step's sequences into rows, as far as it decides memory."""

from __future__ import annotations

from verl_hpc.config.run import RunConfig
from verl_hpc.layout.megatron import TrainLayout
from verl_hpc.planner.memory.activations import NONE, Rectangles, split_rectangles
from verl_hpc.planner.shape import RoleShape

_COLUMN_BYTES = 48
"""Bytes of a token in a step's columns: its id in 8 bytes, and ten numbers in float32."""
_RECTANGLES = 1.5
"""Right-padded tokens for each real one, where PyTorch's attention computes on rectangles; at most
2."""


def _num_sequences(config: RunConfig) -> int:
    return config.batch.size * (config.rollout.num_samples if config.samples_to_train else 1)


def longest_sequence(config: RunConfig) -> int:
    """Tokens of a prompt and its response."""
    return config.rollout.max_prompt_tokens + config.rollout.max_response_tokens


def longest_row(config: RunConfig, layout: TrainLayout) -> int:
    """Tokens on a rank: a micro-batch's budget, or one sequence that is longer; context-parallel
    ranks share them."""
    whole = max(config.batch.max_tokens_per_micro_batch, longest_sequence(config))
    return -(-whole // layout.cp)


def rectangles_of(shape: RoleShape, config: RunConfig) -> Rectangles:
    """Rectangles of the row that keeps the most: one rectangle, unless attention computes on packed
    rows."""
    if shape.backend != "local":
        return NONE
    tokens, cp = longest_row(config, shape.layout), shape.layout.cp
    if cp > 1:
        return split_rectangles(tokens * cp * longest_sequence(config), cp)
    return Rectangles(int(tokens * _RECTANGLES))


def num_micro_batches(config: RunConfig, layout: TrainLayout) -> int | None:
    """Micro-batches of an update, at most one per sequence; None for the most a pipeline can
    hold."""
    if layout.vpp > 1:
        return None
    return -(-_num_sequences(config) // (config.batch.mini_batches * layout.num_replicas))


def columns(config: RunConfig, num_groups: int) -> int:
    """Bytes of a step's token columns on one of the `num_groups` groups that share the
    sequences."""
    return -(-_num_sequences(config) // num_groups) * longest_sequence(config) * _COLUMN_BYTES
