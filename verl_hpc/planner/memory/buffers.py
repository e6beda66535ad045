"""The contiguous buffers of Megatron-core's data parallelism, with their padding.

Megatron-core 0.16, core/distributed/param_and_grad_buffer.py: parameters lie in a buffer in reverse
order, each at a multiple of 64 elements; a bucket ends at a multiple of 128 elements and of the
number of replicas, so that each replica owns an equal share of it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from math import lcm
from typing import NamedTuple

from verl_hpc.planner.memory.parameters import Parameter

_ALIGNMENT = 64


def _padded(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple


def bucket_elements(num_replicas: int) -> int:
    """About how many elements a bucket has where gradients are reduced while they are computed."""
    return max(40_000_000, 1_000_000 * num_replicas)


class Unpadded(NamedTuple):
    """A buffer without padding, of which each replica owns an equal share."""

    num_elements: int
    num_replicas: int

    def owned(self, replica: int) -> list[int]:
        """Elements that a replica's optimizer owns."""
        del replica
        return [self.num_elements // self.num_replicas]


class Buffer:
    """The layout of parameters in one contiguous buffer.

    Args:
        parameters: in the order of the model.
        num_replicas: replicas that share the optimizer's state.
        bucket_size: about how many elements a bucket has; None is one bucket.
    """

    def __init__(
        self, parameters: Sequence[Parameter], num_replicas: int, bucket_size: int | None
    ) -> None:
        self.num_replicas = num_replicas
        self._multiple = lcm(num_replicas, 128)
        self._starts: list[int] = []
        self._stops: list[int] = []
        self.buckets: list[tuple[int, int]] = []
        # Megatron-core fills the buffer from the last parameter to the first.
        begin = at = 0
        for parameter in reversed(parameters):
            at = _padded(at, _ALIGNMENT)
            if parameter.own_bucket and len(self._starts) > self._in_buckets:
                at = begin = self._close(begin, at)
            self._starts.append(at)
            at += parameter.num_elements
            self._stops.append(at)
            full = bucket_size is not None and at - begin >= bucket_size
            if full or parameter.own_bucket:
                at = begin = self._close(begin, at)
        if len(self._starts) > self._in_buckets:
            self._close(begin, at)

    _in_buckets = 0
    """Number of parameters in closed buckets."""

    def _close(self, begin: int, end: int) -> int:
        end = _padded(end, self._multiple)
        self.buckets.append((begin, end))
        self._in_buckets = len(self._starts)
        return end

    @property
    def num_elements(self) -> int:
        """Elements, all padding included."""
        return self.buckets[-1][1] if self.buckets else 0

    def owned(self, replica: int) -> list[int]:
        """Elements of each parameter's range that a replica's optimizer owns; padding has none."""
        ranges = []
        for begin, end in self.buckets:
            share = (end - begin) // self.num_replicas
            low = begin + replica * share
            first = bisect_right(self._stops, low)
            for start, stop in zip(self._starts[first:], self._stops[first:], strict=True):
                if start >= low + share:
                    break
                ranges.append(min(stop, low + share) - max(start, low))
        return ranges
