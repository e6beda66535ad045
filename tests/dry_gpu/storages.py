"""Bytes of a device that are taken, as torch's caching allocator rounds them."""

from __future__ import annotations

import weakref
from typing import Any

import torch

from tests.dry_gpu.streams import History, Order

_BLOCK = 512


def _rounded(num_bytes: int) -> int:
    return -(-num_bytes // _BLOCK) * _BLOCK


class Storages:
    """Counts the storages that exist on the device: now, and at most.

    Args:
        order: of the device's streams, which is told of what is allocated and freed.
    """

    def __init__(self, order: Order) -> None:
        self._order = order
        self.live = self.peak = 0
        """Bytes."""
        self._sizes: dict[int, int] = {}

    def saw(self, tensor: torch.Tensor) -> None:
        """Count the storage of a tensor of the device, until it is freed."""
        storage: Any = tensor.untyped_storage()
        key = storage._cdata
        if key not in self._sizes and not getattr(storage, "page_locked", False):
            self._sizes[key] = 0
            weakref.finalize(storage, self._freed, key, self._order.allocated(storage))
            self._resize(key, storage.nbytes())

    def resized(self, storage: Any) -> None:
        """Count anew a storage that was resized in place."""
        if storage._cdata in self._sizes:
            self._resize(storage._cdata, storage.nbytes())

    def forget_peak(self) -> None:
        self.peak = self.live

    def _resize(self, key: int, num_bytes: int) -> None:
        self.live += _rounded(num_bytes) - self._sizes[key]
        self._sizes[key] = _rounded(num_bytes)
        self.peak = max(self.peak, self.live)

    def _freed(self, key: int, history: History) -> None:
        self.live -= self._sizes.pop(key)
        self._order.freed(history)
