"""Attention on packed rows by the rollout's own kernel, so that both have the same bits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from verl_hpc.engines.shared.packing import PackedRow, first_of_each
from verl_hpc.engines.shared.padded import PaddedAttention

Attend = Callable[
    [torch.Tensor, torch.Tensor, torch.Tensor, Sequence[int], float | None], torch.Tensor
]
"""Causal attention within sequences that follow each other: queries (T, heads, size), keys and
values (T, key heads, size), the sequences' lengths, and the factor of the scores (None is one over
the root of the size) give (T, heads, size)."""


class InvariantAttention:
    """`PaddedAttention` whose forward pass is a kernel that gives a token the same bits whatever
    else is in its batch. The backward pass is PyTorch's.

    Args:
        row: the packed row.
        attend: the kernel.
    """

    def __init__(self, row: PackedRow, attend: Attend) -> None:
        self._padded, self._attend, self._lengths = PaddedAttention(row), attend, row.lengths
        self._places = row.places
        count = row.tokens.shape[1]
        self._first = first_of_each(row.places, count) if row.places is not None else None

    def attend(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        scale: float | None,
        window: int = 0,
        sinks: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """See `PaddedAttention.attend`; without windows and sinks."""
        assert window == 0 and sinks is None, "refused before"
        attended: torch.Tensor = _Attention.apply(query, key, value, scale, self)
        return attended

    def forward(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float | None
    ) -> torch.Tensor:
        """Attend by the kernel; every sequence has its own copy of tokens that it shares."""
        if self._places is not None:
            query, key, value = (t.index_select(0, self._places) for t in (query, key, value))
        attended = self._attend(query, key, value, self._lengths, scale)
        return attended if self._first is None else attended.index_select(0, self._first)

    def differentiable(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float | None
    ) -> torch.Tensor:
        """Attend by PyTorch's kernels."""
        return self._padded.attend(query, key, value, scale)


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        scale: float | None,
        row: InvariantAttention,
    ) -> torch.Tensor:
        ctx.save_for_backward(query, key, value)
        ctx.scale, ctx.row = scale, row
        return row.forward(query, key, value, scale)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        inputs = [t.detach().requires_grad_() for t in ctx.saved_tensors]
        with torch.enable_grad():
            attended = ctx.row.differentiable(*inputs, ctx.scale)
        return *torch.autograd.grad(attended, inputs, gradient), None, None
