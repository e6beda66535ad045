"""Unpadded micro-batches: many sequences in one row of tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch


class Split(Protocol):
    """A row over several ranks, each of which has some of its tokens."""

    def local(self, whole: torch.Tensor) -> torch.Tensor:
        """This rank's part of a (T, ...) tensor."""
        ...

    def whole(self, part: torch.Tensor) -> torch.Tensor:
        """(T, ...) of every rank's part, on every rank; differentiable."""
        ...


@dataclass(frozen=True)
class PackedRow:
    """Sequences of one micro-batch, one behind another, T tokens in all.

    Attention must not cross their borders; everything else works token by token. Tokens that a
    sequence shares with the one before it are in the row once.
    """

    tokens: torch.Tensor
    """(1, T) int64."""
    positions: torch.Tensor
    """(1, T) int64, counted from the start of each sequence."""
    targets: torch.Tensor
    """(T,) int64: the next token of the same sequence; 0 at a sequence's last token."""
    lengths: tuple[int, ...]
    """Tokens of each sequence, with padding behind it, and of the padding sequence at the end."""
    num_sequences: int
    """Sequences without the padding one; 0 of a row that is padding alone."""
    places: torch.Tensor | None = None
    """(sum of lengths,) int64: where in the row each token of each sequence is; None where they
    follow each other, none of them shared."""
    real_lengths: tuple[int, ...] | None = None
    """Tokens of each real sequence without padding; None if none is padded."""
    split_over: Split | None = None
    """Context-parallel ranks; None if this rank has the whole row."""

    def local(self, whole: torch.Tensor) -> torch.Tensor:
        """What this rank has of a (T, ...) tensor."""
        return whole if self.split_over is None else self.split_over.local(whole)

    def whole(self, part: torch.Tensor) -> torch.Tensor:
        """(T, ...) of what the ranks have that share the row."""
        return part if self.split_over is None else self.split_over.whole(part)

    @property
    def cumulative_lengths(self) -> torch.Tensor:
        """(sequences + 1,) int32 on the tokens' device, from 0 to T."""
        assert self.places is None, "tokens are shared"
        ends = torch.tensor((0, *self.lengths), dtype=torch.int32).cumsum(0, dtype=torch.int32)
        return ends.to(self.tokens.device)

    def split(self, per_token: torch.Tensor) -> list[torch.Tensor]:
        """A (T, ...) tensor cut into the real sequences' parts."""
        if self.places is not None:
            per_token = per_token.index_select(0, self.places)
        parts = list(per_token.split(self.lengths))[: self.num_sequences]
        if self.real_lengths is None:
            return parts
        return [part[:length] for part, length in zip(parts, self.real_lengths, strict=True)]

    def join(self, parts: Sequence[torch.Tensor]) -> torch.Tensor:
        """Parts of the real sequences, (L - 1, k) each, as (T, k) on the tokens' device; zeros at a
        sequence's last token and where there is padding. Of shared tokens all have the same."""
        whole = parts[0].new_zeros(sum(self.lengths), *parts[0].shape[1:]).to(self.tokens.device)
        for target, part in zip(whole.split(self.lengths), parts, strict=False):
            target[: len(part)] = part
        return whole if self.places is None else whole.index_select(0, first_of_each(self.places))


def first_of_each(places: torch.Tensor) -> torch.Tensor:
    """Where in `places` each of 0, 1, 2, ... comes first, (T,) int64."""
    ordered, order = places.sort(stable=True)
    return order[torch.cat([ordered.new_ones(1), ordered.diff()]) > 0]


def pack(
    sequences: Sequence[torch.Tensor], multiple: int = 1, shared: Sequence[int] | None = None
) -> PackedRow:
    """Pack (L,) token tensors; the row's length is padded to a multiple of `multiple`.

    Padding is a sequence of its own (zeros), so that it attends to nothing real. Sequence
    parallelism needs the length to be a multiple of the tensor-parallel size.

    Args:
        sequences: in the order of the row.
        multiple: of the row's length.
        shared: tokens at the start of each that are those of the one before it
            (`shared_prefixes.num_shared`); None is none.
    """
    counts = list(shared or [0] * len(sequences))
    parts = [s[count:] for s, count in zip(sequences, counts, strict=True)]
    padding = -sum(map(len, parts)) % multiple
    if padding:
        parts.append(sequences[0].new_zeros(padding))
        counts.append(0)
    tokens = torch.cat(parts)
    lengths = tuple(count + len(part) for count, part in zip(counts, parts, strict=True))
    bounds = zip(counts, lengths, strict=True)
    positions = torch.cat([torch.arange(*b, device=tokens.device) for b in bounds])
    targets = torch.cat([torch.cat([p[1:], p.new_zeros(1)]) for p in parts])
    places = _places(lengths, counts).to(tokens.device) if any(counts) else None
    return PackedRow(tokens[None], positions[None], targets, lengths, len(sequences), places)


def _places(lengths: Sequence[int], shared: Sequence[int]) -> torch.Tensor:
    """See `PackedRow.places`."""
    found: list[torch.Tensor] = []
    start = 0
    for length, count in zip(lengths, shared, strict=True):
        own = torch.arange(start, start + length - count)
        found.append(torch.cat([found[-1][:count], own]) if count else own)
        start += length - count
    return torch.cat(found)
