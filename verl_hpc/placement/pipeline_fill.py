"""Micro-batches that keep a pipeline's stages busy.

p stages work m / (m + p - 1) of the time on m micro-batches, whether forward and backward alternate
or not (GPipe, arXiv 1811.06965; 1F1B, arXiv 2104.04473): two micro-batches on four stages 40 %,
sixteen 84 %.
"""

from __future__ import annotations

from collections.abc import Sequence

from verl_hpc.placement.balance import balance

TOKENS = 512
"""Tokens that make a micro-batch beyond two a stage worthwhile. A matrix product on fewer than
about 300 waits for its weights: an H100 does 989 Tflop/s in bf16 and reads 3.35 TB/s."""


def wanted(lengths: Sequence[int], num_stages: int) -> int:
    """How many micro-batches fill a pipeline: two to four a stage, none without a sequence.

    Args:
        lengths: tokens of each sequence.
        num_stages: pipeline_parallel.
    """
    count = min(max(sum(lengths) // TOKENS, 2 * num_stages), 4 * num_stages)
    return min(count, len(lengths))


def dealt_to(
    count: int,
    micro_batches: Sequence[Sequence[int]],
    lengths: Sequence[int],
    costs: Sequence[float],
    max_tokens: int,
) -> list[list[int]]:
    """Exactly `count` micro-batches: of nearly equal cost where each keeps its budget, else of
    nearly equal length, else those that there are, and empty ones.

    Args:
        count: at least as many as there are.
        micro_batches: indices of sequences, as `balance.micro_batches`.
        lengths, costs: of each sequence.
        max_tokens: of a micro-batch with more than one sequence.
    """
    for measure in (costs, lengths):
        dealt = balance(measure, count)
        if all(len(b) < 2 or sum(lengths[i] for i in b) <= max_tokens for b in dealt):
            return dealt
    return [*map(list, micro_batches), *([] for _ in range(count - len(micro_batches)))]
