"""Attention on packed rows, as right-padded rectangles."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.nn.functional import pad, scaled_dot_product_attention

from verl_hpc.engines.shared.packing import PackedRow, first_of_each, to_device


class PaddedView:
    """Position of a packed row's tokens in a right-padded (sequences, longest) rectangle.

    With right padding a causal mask alone keeps padding away from real tokens, so attention can
    use the fused causal kernels.

    Args:
        row: the packed row.
        members: ascending indices of the sequences in the rectangle; all if None.
    """

    def __init__(self, row: PackedRow, members: Sequence[int] | None = None) -> None:
        chosen = range(len(row.lengths)) if members is None else members
        lengths = [row.lengths[i] for i in chosen]
        self.num_rows, self.row_length = len(lengths), max(lengths)
        device = row.tokens.device
        starts = torch.arange(self.num_rows, device=device) * self.row_length
        repeats = to_device(torch.tensor(lengths), device)
        is_whole = len(lengths) == len(row.lengths) and row.places is None
        self.tokens = None if is_whole else _tokens_of(row, chosen)
        """Positions in the row of the members' tokens; None if they are the whole row in order."""
        positions = row.positions[0] if self.tokens is None else row.positions[0][self.tokens]
        # Without the number a GPU would be asked for it.
        of_each = torch.repeat_interleave(starts, repeats, output_size=sum(lengths))
        self.slots = of_each + positions
        self.is_dense = self.num_rows * self.row_length == self.slots.numel()

    def pad(self, packed: torch.Tensor) -> torch.Tensor:
        """Pad (T, heads, size) of the whole row to (sequences, heads, longest, size)."""
        if self.tokens is not None:
            packed = packed.index_select(0, self.tokens)
        shape = packed.shape[1:]
        if not self.is_dense:
            padded = packed.new_zeros(self.num_rows * self.row_length, *shape)
            packed = padded.index_copy(0, self.slots, packed)
        return packed.view(self.num_rows, self.row_length, *shape).transpose(1, 2)

    def unpad(self, padded: torch.Tensor) -> torch.Tensor:
        """Unpad (sequences, heads, longest, size) to (tokens of the members, heads, size)."""
        rows = padded.transpose(1, 2).reshape(-1, padded.shape[1], padded.shape[3])
        return rows if self.is_dense else rows.index_select(0, self.slots)


class PaddedAttention:
    """Causal attention within each sequence of a packed row (PyTorch's fused kernels), on
    rectangles that are at most half padding.

    A single rectangle would grow with the square of the row if one sequence is long and many are
    short.
    """

    def __init__(self, row: PackedRow) -> None:
        self.views = [PaddedView(row, members) for members in similar_lengths(row.lengths)]
        places = [v.tokens for v in self.views if v.tokens is not None]
        self._order = first_of_each(torch.cat(places), row.tokens.shape[1]) if places else None

    def attend(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        scale: float | None,
        window: int = 0,
        sinks: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Attend from (T, heads, size) inputs to (T, heads, size of values); keys and values may
        have fewer heads, and values another size (see `causal_attention`)."""
        parts = []
        for view in self.views:
            q, k, v = (view.pad(t) for t in (query, key, value))
            parts.append(view.unpad(causal_attention(q, k, v, scale, window, sinks)))
        return self.join(parts)

    def join(self, parts: Sequence[torch.Tensor]) -> torch.Tensor:
        """Join the results of each view's `unpad` in the order of the row, with one copy of shared
        tokens."""
        if self._order is None:
            return parts[0]
        return torch.cat(list(parts)).index_select(0, self._order)


def causal_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scale: float | None,
    window: int = 0,
    sinks: torch.Tensor | None = None,
    mask: torch.Tensor | None = None,
) -> torch.Tensor:
    """Attend causally, (sequences, heads, longest, size) each; keys and values may have fewer
    heads, and values another size. Fewer queries than keys are the last of the keys' tokens.

    Args:
        scale: factor of the scores; None is one over the root of the size.
        window: keys, its own among them, that a query reads at most; 0: all before it.
        sinks: (heads,) scores beside those of the keys, which take a share of each softmax.
        mask: bool, which keys each query reads, (queries, keys); causal if None.
    """
    num, length = query.shape[2], key.shape[2]
    if mask is None and 0 < window < length:
        parts, stop = [], length - num
        for part in query.split(window, dim=2):
            stop += part.shape[2]
            seen = slice(max(stop - part.shape[2] - window + 1, 0), stop)
            k, v = key[:, :, seen], value[:, :, seen]
            reads = _mask(part.shape[2], k.shape[2], window, key.device)
            parts.append(causal_attention(part, k, v, scale, 0, sinks, reads))
        return torch.cat(parts, dim=2)
    if num < length and mask is None:
        mask = _mask(num, length, length, key.device)
    size, is_causal = value.shape[-1], mask is None
    if sinks is not None:
        # A key more, the first, whose score is the sink and whose value is zero, so that kernels
        # need not know: it alone has a one in a further element, where queries have the sink.
        more = 8 if query.is_cuda else 1  # GPUs' kernels take sizes that 8 divides
        scale = query.shape[-1] ** -0.5 if scale is None else scale
        column = (sinks / scale)[None, :, None, None].expand(*query.shape[:3], 1)
        query = torch.cat([query, pad(column, (0, more - 1))], dim=-1)
        key, value = pad(key, (0, more, 1, 0)), pad(value, (0, 0, 1, 0))
        key[:, :, 0, -more] = 1.0
        if mask is None:
            query = pad(query, (0, 0, 1, 0))  # it reads the first key alone
        else:
            mask = pad(mask, (1, 0), value=True)
    grouped = query.shape[1] != key.shape[1]
    if grouped and query.is_cuda and query.dtype == torch.float32:
        # The only fused float32 kernel knows no groups, and without it the scores are kept whole.
        times = query.shape[1] // key.shape[1]
        key, value = (t.repeat_interleave(times, dim=1) for t in (key, value))
        grouped = False
    if size < query.shape[-1] and (sinks is not None or not query.is_cuda):
        # The fused kernels of CPUs, and of GPUs with sinks, want equal sizes, and without them the
        # scores are kept whole.
        value = pad(value, (0, query.shape[-1] - size))
    attended = scaled_dot_product_attention(
        query, key, value, mask, is_causal=is_causal, scale=scale, enable_gqa=grouped
    )
    return attended[:, :, int(is_causal and sinks is not None) :, :size]


def _mask(num: int, length: int, window: int, device: torch.device) -> torch.Tensor:
    """Return which of `length` keys each of the last `num` queries reads, (num, length) bool."""
    past = length - num
    reads = torch.ones(num, length, dtype=torch.bool, device=device)
    return reads.tril(past).triu(past - window + 1)


def similar_lengths(lengths: Sequence[int]) -> list[list[int]]:
    """Group indices so that each group's rectangle is at most half padding; one group if possible.

    Lengths 9, 2, 8, 1 and 1 give [0, 2] and [1, 3, 4].
    """
    if len(lengths) * max(lengths) <= 2 * sum(lengths):
        return [list(range(len(lengths)))]
    groups: list[list[int]] = []
    for index in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        if groups and 2 * lengths[index] >= lengths[groups[-1][0]]:
            groups[-1].append(index)
        else:
            groups.append([index])
    return [sorted(group) for group in groups]


def _tokens_of(row: PackedRow, members: Sequence[int]) -> torch.Tensor:
    """Return the positions in the row of the members' tokens, member by member."""
    chosen = set(members)
    flags = torch.tensor([i in chosen for i in range(len(row.lengths))])
    kept = torch.repeat_interleave(flags, torch.tensor(row.lengths))
    indices = to_device(kept.nonzero()[:, 0], row.tokens.device)
    return indices if row.places is None else row.places[indices]
