"""Unpadded micro-batches: many sequences in one row of tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class PackedRow:
    """Sequences of one micro-batch, one behind another, T tokens in all.

    Attention must not cross their borders; everything else works token by token.
    """

    tokens: torch.Tensor
    """(1, T) int64."""
    positions: torch.Tensor
    """(1, T) int64, counted from the start of each sequence."""
    targets: torch.Tensor
    """(T,) int64: the next token of the same sequence; 0 at a sequence's last token."""
    lengths: tuple[int, ...]
    """Tokens of each sequence, the padding sequence at the end included."""
    num_sequences: int
    """Sequences without the padding one."""

    @property
    def cumulative_lengths(self) -> torch.Tensor:
        """(sequences + 1,) int32 on the tokens' device, from 0 to T."""
        ends = torch.tensor((0, *self.lengths), dtype=torch.int32).cumsum(0, dtype=torch.int32)
        return ends.to(self.tokens.device)

    def split(self, per_token: torch.Tensor) -> list[torch.Tensor]:
        """A (T, ...) tensor cut into the real sequences' parts."""
        return list(per_token.split(self.lengths))[: self.num_sequences]


def pack(sequences: Sequence[torch.Tensor], multiple: int = 1) -> PackedRow:
    """Pack (L,) token tensors; the row's length is padded to a multiple of `multiple`.

    Padding is a sequence of its own (zeros), so that it attends to nothing real. Sequence
    parallelism needs the length to be a multiple of the tensor-parallel size.
    """
    lengths = [len(s) for s in sequences]
    padding = -sum(lengths) % multiple
    parts = list(sequences)
    if padding:
        lengths.append(padding)
        parts.append(sequences[0].new_zeros(padding))
    tokens = torch.cat(parts)
    positions = torch.cat([torch.arange(n, device=tokens.device) for n in lengths])
    targets = torch.cat([torch.cat([p[1:], p.new_zeros(1)]) for p in parts])
    return PackedRow(tokens[None], positions[None], targets, tuple(lengths), len(sequences))


class PaddedView:
    """Where the tokens of a packed row lie in a right-padded (sequences, longest) rectangle.

    With right padding a causal mask alone keeps padding away from real tokens, so attention can
    use the fused causal kernels.
    """

    def __init__(self, row: PackedRow) -> None:
        self.num_rows, self.row_length = len(row.lengths), max(row.lengths)
        device = row.tokens.device
        starts = torch.arange(self.num_rows, device=device) * self.row_length
        repeats = torch.tensor(row.lengths, device=device)
        self.slots = torch.repeat_interleave(starts, repeats) + row.positions[0]
        self.is_dense = self.num_rows * self.row_length == self.slots.numel()

    def pad(self, packed: torch.Tensor) -> torch.Tensor:
        """(T, heads, size) to (sequences, heads, longest, size)."""
        shape = packed.shape[1:]
        if not self.is_dense:
            padded = packed.new_zeros(self.num_rows * self.row_length, *shape)
            packed = padded.index_copy(0, self.slots, packed)
        return packed.view(self.num_rows, self.row_length, *shape).transpose(1, 2)

    def unpad(self, padded: torch.Tensor) -> torch.Tensor:
        """(sequences, heads, longest, size) to (T, heads, size)."""
        rows = padded.transpose(1, 2).reshape(-1, padded.shape[1], padded.shape[3])
        return rows if self.is_dense else rows.index_select(0, self.slots)
