"""Statistics over the response tokens of a batch that is spread over ranks.

Shapes: B sequences, T response tokens, right-padded; `mask` is (B, T), 1 where a token counts.
`reduce` sums a tensor over all data-parallel ranks, so that results do not depend on the layout;
it is the identity on one rank.
"""

from __future__ import annotations

from collections.abc import Callable

from verl_hpc.algorithms.lazy import torch

Reduce = Callable[["torch.Tensor"], "torch.Tensor"]


def alone(tensor: torch.Tensor) -> torch.Tensor:
    """The reduction of a single rank."""
    return tensor


def masked_sum(values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Sum of `values` where `mask` is 1; values elsewhere may be anything, NaN included."""
    return torch.where(mask.bool(), values, 0).sum()


def masked_mean(values: torch.Tensor, mask: torch.Tensor, reduce: Reduce = alone) -> torch.Tensor:
    """sum(x m) / (sum m + 1e-8)."""
    total, count = reduce(torch.stack([masked_sum(values, mask), mask.sum().to(values)]))
    return total / (count + 1e-8)


def whiten(values: torch.Tensor, mask: torch.Tensor, reduce: Reduce = alone) -> torch.Tensor:
    """(x - mean) * rsqrt(var + 1e-8) over the masked tokens of all ranks, var unbiased.

    (B, T) in, (B, T) out; the statistics are in float64.
    """
    wide = values.double()
    mean = masked_mean(wide, mask, reduce)
    count = reduce(mask.sum().double())
    variance = masked_mean((wide - mean) ** 2, mask, reduce) * count / (count - 1).clamp(min=1)
    return ((wide - mean) * torch.rsqrt(variance + 1e-8)).to(values.dtype)


def from_here_on(values: torch.Tensor) -> torch.Tensor:
    """(B, T) to (B, T): the sum of each value and those of later tokens."""
    return values.flip(-1).cumsum(-1).flip(-1)


def discounted(factors: torch.Tensor, terms: torch.Tensor) -> torch.Tensor:
    """x_t = factors_t x_{t+1} + terms_t along the last dim, with x = 0 past its end; all (B, T).

    In log2(T) passes, each of which lets a token see twice as far (Hillis and Steele, "Data
    parallel algorithms", 1986).
    """
    distance = 1
    while distance < terms.shape[-1]:
        terms = terms + factors * later(terms, distance)
        factors = factors * later(factors, distance)
        distance *= 2
    return terms


def later(per_token: torch.Tensor, distance: int) -> torch.Tensor:
    """(B, T): the value `distance` tokens later; 0 past the end."""
    return torch.nn.functional.pad(per_token[:, distance:], (0, distance))
