"""Pack micro-batches without padding: many sequences in one row of tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
import torch.distributed as dist


@dataclass(frozen=True)
class ContextSplit:
    """Assignment of a row's T tokens to the n ranks of a context-parallel group."""

    places: torch.Tensor
    """(n, T / n) int64: position in the row of each token of each rank, in the rank's order."""
    group: dist.ProcessGroup
    """The n ranks."""

    @cached_property
    def order(self) -> torch.Tensor:
        """(T,) int64: index of each token of the row in the concatenation of all ranks' tokens."""
        return self.places.flatten().argsort()

    def local(self, whole: torch.Tensor) -> torch.Tensor:
        """Return this rank's (T / n, ...) part of a (T, ...) tensor."""
        return whole.index_select(0, self.places[self.group.rank()])

    def whole(self, part: torch.Tensor) -> torch.Tensor:
        """Gather every rank's (T / n, ...) to (T, ...). The backward pass keeps each rank's own
        part: all ranks compute the same loss of the whole row, so gradients are not summed."""
        return _Gathered.apply(part, self)  # type: ignore[no-any-return]


class _Gathered(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, part: torch.Tensor, split: ContextSplit) -> torch.Tensor:
        ctx.split = split
        parts = [torch.empty_like(part) for _ in split.places]
        dist.all_gather(parts, part.contiguous(), group=split.group)
        return torch.cat(parts).index_select(0, split.order)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return ctx.split.local(gradient), None


@dataclass(frozen=True)
class PackedRow:
    """Sequences of one micro-batch, concatenated, T tokens in all.

    Attention must not cross their borders; everything else works token by token. Tokens that a
    sequence shares with the one before it are stored once.
    """

    tokens: torch.Tensor
    """(1, T) int64."""
    positions: torch.Tensor
    """(1, T) int64, counted from the start of each sequence."""
    targets: torch.Tensor
    """(T,) int64: the next token of the same sequence; 0 at a sequence's last token."""
    lengths: tuple[int, ...]
    """Tokens of each sequence, its padding included, and of the padding sequence at the end."""
    num_sequences: int
    """Number of sequences without the padding one; 0 for a row of padding only."""
    places: torch.Tensor | None = None
    """(sum of lengths,) int64: position in the row of each token of each sequence; None if no
    tokens are shared, so that sequences just follow each other."""
    real_lengths: tuple[int, ...] | None = None
    """Tokens of each real sequence without padding; None if none is padded."""
    split_over: ContextSplit | None = None
    """Context-parallel ranks; None if this rank has the whole row."""

    def local(self, whole: torch.Tensor) -> torch.Tensor:
        """Return this rank's part of a (T, ...) tensor."""
        return whole if self.split_over is None else self.split_over.local(whole)

    def whole(self, part: torch.Tensor) -> torch.Tensor:
        """Gather the parts of all ranks that share the row to (T, ...)."""
        return part if self.split_over is None else self.split_over.whole(part)

    @property
    def cumulative_lengths(self) -> torch.Tensor:
        """(sequences + 1,) int32 on the tokens' device, from 0 to T."""
        assert self.places is None, "tokens are shared"
        ends = torch.tensor((0, *self.lengths), dtype=torch.int32).cumsum(0, dtype=torch.int32)
        return to_device(ends, self.tokens.device)

    def split(self, per_token: torch.Tensor) -> list[torch.Tensor]:
        """Split a (T, ...) tensor into the real sequences' parts."""
        if self.places is not None:
            per_token = per_token.index_select(0, self.places)
        parts = list(per_token.split(self.lengths))[: self.num_sequences]
        if self.real_lengths is None:
            return parts
        return [part[:length] for part, length in zip(parts, self.real_lengths, strict=True)]

    def join(self, parts: Sequence[torch.Tensor]) -> torch.Tensor:
        """Join parts of the real sequences, (L - 1, k) each, to (T, k) on the tokens' device, with
        zeros at each sequence's last token and at padding. Sequences must agree on shared
        tokens."""
        whole = parts[0].new_zeros(sum(self.lengths), *parts[0].shape[1:]).to(self.tokens.device)
        for target, part in zip(whole.split(self.lengths), parts, strict=False):
            target[: len(part)] = part
        if self.places is None:
            return whole
        return whole.index_select(0, first_of_each(self.places, self.tokens.shape[1]))


def to_device(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Copy a tensor of the host to a device without waiting for what the device still computes."""
    if device.type == "cuda":
        tensor = tensor.pin_memory()  # pageable memory is staged, for which the driver waits
    return tensor.to(device, non_blocking=True)


def first_of_each(places: torch.Tensor, count: int) -> torch.Tensor:
    """Return the first index in `places` of each of 0, 1, ..., count - 1, which all occur there,
    (count,) int64. Without the count a GPU would be asked for it."""
    ordered, order = places.sort(stable=True)
    return order[torch.searchsorted(ordered, torch.arange(count, device=places.device))]


def pack(
    sequences: Sequence[torch.Tensor], multiple: int = 1, shared: Sequence[int] | None = None
) -> PackedRow:
    """Pack (L,) token tensors into a row padded to a multiple of `multiple`.

    Padding is a separate sequence of zeros, so it attends to no real token. Sequence parallelism
    needs the length to be a multiple of the tensor-parallel size.

    Args:
        sequences: token tensors in the order of the row.
        multiple: divisor of the row's length.
        shared: how many tokens each sequence shares with the one before it
            (`shared_prefixes.num_shared`); None shares no tokens.
    """
    # Only the tokens that a sequence does not share with its predecessor enter the row.
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
    places = to_device(_places(lengths, counts), tokens.device) if any(counts) else None
    return PackedRow(tokens[None], positions[None], targets, lengths, len(sequences), places)


def _places(lengths: Sequence[int], shared: Sequence[int]) -> torch.Tensor:
    """See `PackedRow.places`."""
    places: list[torch.Tensor] = []
    start = 0
    for length, count in zip(lengths, shared, strict=True):
        own = torch.arange(start, start + length - count)
        places.append(torch.cat([places[-1][:count], own]) if count else own)
        start += length - count
    return torch.cat(places)
