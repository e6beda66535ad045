"""Buckets of a transfer, and copies in host memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from verl_hpc.layout.box import row_major_strides
from verl_hpc.layout.moves import RankMoves, Receive, Send
from verl_hpc.layout.planner import DEFAULT_BUCKET_BYTES, HOST_BUCKET_BYTES, HOST_ROUNDS

_PIECE = 1 << 28
"""In which engines/megatron/offload.py takes page-locked memory."""


def most_bucket_bytes(on_gpu: bool) -> int:
    """That no rank's buckets exceed: one for each round under way, in each direction."""
    rounds, size = (2, DEFAULT_BUCKET_BYTES) if on_gpu else (HOST_ROUNDS, HOST_BUCKET_BYTES)
    return 2 * rounds * size


def bucket_bytes(
    moves: RankMoves, rounds: int, same_dtype: Mapping[str, bool] | bool = True
) -> int:
    """Of one rank's buckets, as `transfer.exchange.Buckets` grows them in a run of these moves.

    Args:
        rounds: under way at a time.
        same_dtype: whether what is sent has the type that travels, by logical tensor or for all.
    """
    largest: dict[tuple[str, int], int] = {}
    for hop in moves.hops:
        for place, step in enumerate(hop):
            for kind, message in (("send", step.sends), ("receive", step.receives)):
                if message and not _in_place(message, same_dtype):
                    key = kind, place % rounds
                    size = sum(item.fragment.num_bytes for item in message)
                    largest[key] = max(largest.get(key, 0), size)
    return sum(largest.values())


def _in_place(
    message: Iterable[Send] | Iterable[Receive], same_dtype: Mapping[str, bool] | bool
) -> bool:
    """Whether a message is sent from, or received into, the memory of its tensor."""
    first, *more = message
    if more:
        return False
    view = first.view if isinstance(first, Send) else first.targets[0]
    shape = first.fragment.box.shape
    wanted = row_major_strides(shape)
    lies = all(n == 1 or a == b for n, a, b in zip(shape, view.strides, wanted, strict=True))
    known = same_dtype if isinstance(same_dtype, bool) else same_dtype[first.fragment.tensor]
    # What is received, and what is passed on, is target memory, which has the type that travels.
    return lies and (known or isinstance(first, Receive) or first.relay)


def page_locked(num_bytes: int) -> int:
    """What page-locked memory of a tensor takes: PyTorch rounds each piece up to a power of 2."""
    whole, rest = divmod(num_bytes, _PIECE)
    return whole * _PIECE + (1 << (rest - 1).bit_length() if rest else 0)


def host_copy(sizes: Iterable[int], on_gpu: bool) -> int:
    """Host memory of copies of storages; on CPUs it is ordinary, and exactly as large."""
    return sum(map(page_locked, sizes)) if on_gpu else sum(sizes)
