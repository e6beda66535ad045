"""The GPU's fingerprint in one kernel, which reads every byte once."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

_BLOCK = 4096


@triton.jit
def _add(words, num_words, total, block: tl.constexpr):  # type: ignore[no-untyped-def]
    places = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    values = tl.load(words + places, mask=places < num_words, other=0).to(tl.int64)
    tl.atomic_add(total, tl.sum(values * (2 * places + 1), axis=0))


def weighted_sum(words: torch.Tensor) -> torch.Tensor:
    """Sum of each of the int32 words times 2 p + 1, where p is its place, modulo 2^64.

    Additions modulo 2^64 give the same in any order.
    """
    total = torch.zeros((), dtype=torch.int64, device=words.device)
    if words.numel():
        _add[(triton.cdiv(words.numel(), _BLOCK),)](words, words.numel(), total, block=_BLOCK)
    return total
