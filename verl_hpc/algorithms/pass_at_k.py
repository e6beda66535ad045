"""pass@k: how likely at least one of k answers is right."""

from __future__ import annotations

import math


def pass_at_k(num_samples: int, num_correct: int, k: int) -> float:
    """1 - C(n - c, k) / C(n, k), the unbiased estimate from n samples of which c are right (arXiv
    2107.03374, equation 1, as the product of its figure 3)."""
    assert 0 <= num_correct <= num_samples and 1 <= k <= num_samples
    num_wrong = num_samples - num_correct
    if num_wrong < k:
        return 1.0
    return 1.0 - math.prod(1.0 - k / n for n in range(num_wrong + 1, num_samples + 1))


def ks_up_to(num_samples: int) -> list[int]:
    """1, 2, 4, ... below the number of samples, and that number."""
    powers = (1 << i for i in range(num_samples.bit_length()))
    return [k for k in powers if k < num_samples] + [num_samples]
