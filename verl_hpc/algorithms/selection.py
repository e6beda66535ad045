"""The largest of numbers that are spread over ranks."""

from __future__ import annotations

from verl_hpc.algorithms.lazy import torch
from verl_hpc.algorithms.masked import Reduce, alone

_BITS = 16
"""Bits decided at a time, of the 64 of a number."""


def at_least_kth_largest(
    values: torch.Tensor, among: torch.Tensor, count: int, reduce: Reduce = alone
) -> torch.Tensor:
    """Select the values that are among the `count` largest of all ranks, (B, T) bool.

    Values equal to the smallest of these are selected as well, so that the choice does not depend
    on which rank has which; where there are fewer than `count`, all are selected. A radix
    selection: four reductions of 65536 counts, whatever the number of values.

    Args:
        values: (B, T) float64, finite where `among` is true.
        among: (B, T) bool: those to choose from.
        count: how many; the same on all ranks.
        reduce: sums over data-parallel ranks.
    """
    keys = _ordered(values)
    candidates, left = among.clone(), count
    chosen = torch.zeros_like(among)
    if count <= 0:
        return chosen
    for shift in range(64 - _BITS, -1, -_BITS):
        digit = (keys >> shift) & (2**_BITS - 1)
        counts = torch.bincount(digit[candidates], minlength=2**_BITS)
        above = reduce(counts.double()).flip(0).cumsum(0).flip(0)
        # The digit of the last one: as many as are left have at least this one.
        enough = (above >= left).nonzero()
        if not len(enough):
            return chosen | candidates
        last = int(enough[-1])
        chosen |= candidates & (digit > last)
        left -= int(above[last + 1]) if last + 1 < len(above) else 0
        candidates &= digit == last
    return chosen | candidates


def _ordered(values: torch.Tensor) -> torch.Tensor:
    """int64 whose bits, read as an unsigned number, are in the order of the float64 values."""
    bits = (values.double() + 0.0).view(torch.int64)
    return torch.where(bits < 0, ~bits, bits ^ torch.iinfo(torch.int64).min)
