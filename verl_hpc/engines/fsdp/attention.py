"""Attention for transformers' layers on packed rows.

transformers calls an attention by its name with one layer's queries, keys and values, but not with
the packed row. So this module holds the current row, from its forward pass to the end of its
backward pass, which may recompute a layer.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from transformers import AttentionInterface

from verl_hpc.engines.shared.packing import PackedRow
from verl_hpc.engines.shared.padded import PaddedAttention

NAME = "verl_hpc_packed"
"""Key in transformers' registry of attentions."""


class FlashAttention:
    """FlashAttention 2 (arXiv 2307.08691) within each sequence of a packed row; sequences must not
    share tokens."""

    def __init__(self, row: PackedRow) -> None:
        self._starts, self._longest = row.cumulative_lengths, max(row.lengths)

    def attend(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float | None
    ) -> torch.Tensor:
        """See `PaddedAttention.attend`."""
        from flash_attn import flash_attn_varlen_func

        starts, longest = self._starts, self._longest
        output: torch.Tensor = flash_attn_varlen_func(
            query, key, value, starts, starts, longest, longest, softmax_scale=scale, causal=True
        )
        return output


_under_way: list[FlashAttention | PaddedAttention] = []


@contextmanager
def attending(row: PackedRow, uses_flash: bool) -> Iterator[None]:
    """Make layers attend within the sequences of `row` inside this context."""
    assert not _under_way, "another row is under way"
    _under_way.append(FlashAttention(row) if uses_flash else PaddedAttention(row))
    try:
        yield
    finally:
        _under_way.clear()


# The row is a new Python object each time, for which torch.compile would recompile.
@torch.compiler.disable
def _attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    scaling: float | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Attend from (1, heads, T, size) inputs to (1, T, heads, size)."""
    del module, attention_mask
    (attention,) = _under_way
    q, k, v = (t[0].transpose(0, 1) for t in (query, key, value))
    return attention.attend(q, k, v, scaling)[None], None


AttentionInterface.register(NAME, _attend)
