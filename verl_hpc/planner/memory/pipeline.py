"""Micro-batches that a pipeline stage holds between their forward and backward passes.

One forward pass, one backward pass (1F1B, arXiv 2104.04473): stage s of p holds p - s of them. An
interleaved pipeline runs more forward passes before the first backward pass; which chunks they are
of follows from Megatron-core's schedule (core/pipeline_parallel/schedules.py), played through here.
"""

from __future__ import annotations

from functools import lru_cache


@lru_cache(maxsize=16384)
def most_in_flight(
    num_stages: int,
    num_chunks: int,
    stage: int,
    kept: tuple[int, ...],
    num_micro_batches: int | None = None,
) -> int:
    """Peak bytes that a stage holds.

    Stage 0 of 4 with one chunk holds 4 micro-batches, stage 3 one. With 2 chunks, stage 0 runs
    (4 - 0 - 1) * 2 + (2 - 1) * 4 = 10 forward passes first, and holds 11 of a chunk each.

    Args:
        num_stages, num_chunks: pipeline_parallel and virtual_pipeline.
        stage: number of the stage.
        kept: bytes of one micro-batch in each of the stage's chunks.
        num_micro_batches: of an update, a multiple of the stages where chunks are several; None is
            as many as can be held.
    """
    if num_chunks == 1:
        most = num_stages - stage
        return kept[0] * (most if num_micro_batches is None else min(num_micro_batches, most))
    # Play the interleaved schedule: warm-up forward passes, then one backward pass after each.
    count = num_micro_batches or 4 * num_stages
    total = count * num_chunks
    warmup = min((num_stages - stage - 1) * 2 + (num_chunks - 1) * num_stages, total)
    held = most = 0
    for step in range(total):
        held += kept[_chunk(step, num_stages, num_chunks)]
        most = max(most, held)
        if step >= warmup:
            held -= kept[num_chunks - 1 - _chunk(step - warmup, num_stages, num_chunks)]
    return most


def _chunk(step: int, num_stages: int, num_chunks: int) -> int:
    """Chunk of a stage's step-th forward pass."""
    return step % (num_stages * num_chunks) // num_stages
