"""Compute the common prefix of sequences, such as responses to one prompt, once.

A causal model computes the same for equal tokens after equal tokens, so a packed row needs a common
prefix once; only attention reads it once per sequence. Only neighbours are compared: samples of a
prompt, and the two answers of a pair, are neighbours.

Source: Prefix Grouper (arXiv 2506.05433), which also gives the gradients of separate sequences.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch

_LEAST_SHARE = 8
"""Tokens are shared only if they are at least 1 in this many of a sequence; for fewer, attention's
gather costs more than it saves."""


def num_shared(sequences: Sequence[torch.Tensor]) -> list[int]:
    """Count the tokens whose outputs each of the (L,) sequences shares with the one before it: one
    fewer than their common tokens, since a token's output is scored against the next token.

    [5, 6, 7, 1], [5, 6, 7, 2] and [8, 9] give 0, 2 and 0.
    """
    equal = [_num_equal(one, other) for one, other in pairwise(sequences)]
    # A GPU is waited for once, not for each sequence.
    counts = [max(n - 1, 0) for n in torch.stack(equal).tolist()] if equal else []
    counts_kept = [0] * len(sequences)
    for i, count in enumerate(counts, 1):
        counts_kept[i] = count if count * _LEAST_SHARE >= len(sequences[i]) else 0
    return counts_kept


def _num_equal(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Count the tokens that both begin with, () int64 on their device."""
    size = min(len(one), len(other))
    differs = torch.ones(size + 1, dtype=torch.int32, device=one.device)
    differs[:size] = one[:size] != other[:size]
    return differs.argmax()  # the first of several


def share_units(
    lengths: Sequence[int], shared: Sequence[int], max_tokens: int, together: int = 1
) -> tuple[list[range], list[int]]:
    """Return runs of neighbours that share tokens, and the tokens of each run in a packed row.

    A run ends where nothing is shared, and where it would exceed `max_tokens`; runs of `together`
    neighbours are never split. Lengths 4, 4, 4 and 2, of which 0, 2, 2 and 0 are shared, give [0,
    1, 2] of 8 tokens and [3] of 2.
    """
    units: list[range] = []
    sizes: list[int] = []
    for first in range(0, len(lengths), together):
        members = range(first, first + together)
        inner = sum(lengths[i] - shared[i] for i in members[1:])
        joined = sizes[-1] + lengths[first] - shared[first] + inner if sizes else 0
        if shared[first] and joined <= max_tokens:
            units[-1], sizes[-1] = range(units[-1].start, members.stop), joined
        else:
            units.append(members)
            sizes.append(lengths[first] + inner)
    return units, sizes


def within(indices: Sequence[int], shared: Sequence[int]) -> list[int]:
    """Return what each chosen sequence shares with its predecessor; 0 if that was not chosen."""
    before = (None, *indices)
    return [shared[i] if b == i - 1 else 0 for b, i in zip(before, indices, strict=False)]
