"""Counting bytes where they are: storages of tensors, each once."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch


def storage_bytes(tensors: Iterable[torch.Tensor]) -> int:
    """The bytes of all storages that the tensors lie in."""
    storages = [tensor.untyped_storage() for tensor in tensors]
    return sum({s.data_ptr(): s.nbytes() for s in storages if s.nbytes()}.values())


class Saved:
    """What autograd keeps for the backward pass: bytes of storages that are alive, and the most
    there were."""

    def __init__(self, left_out: Iterable[torch.Tensor]) -> None:
        self._left_out = {tensor.untyped_storage().data_ptr() for tensor in left_out}
        self._alive: dict[int, list[int]] = {}
        """(tensors, bytes) by storage."""
        self.now = self.most = 0

    def _pack(self, tensor: torch.Tensor) -> Any:
        storage = tensor.untyped_storage()
        key = storage.data_ptr()
        # Not the tensor itself: an output that is saved for its own node would never be freed.
        kept = _Kept(tensor.detach())
        if key in self._left_out or not storage.nbytes():
            return kept
        entry = self._alive.setdefault(key, [0, storage.nbytes()])
        if not entry[0]:
            self.now += entry[1]
        entry[0] += 1
        self.most = max(self.most, self.now)
        weakref.finalize(kept, self._forget, key)
        return kept

    def _forget(self, key: int) -> None:
        entry = self._alive[key]
        entry[0] -= 1
        if not entry[0]:
            self.now -= entry[1]
            del self._alive[key]

    @contextmanager
    def counting(self) -> Iterator[Saved]:
        with torch.autograd.graph.saved_tensors_hooks(self._pack, lambda kept: kept.tensor):
            yield self


class _Kept:
    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor
