"""Storages that leave the device for host memory, and come back.

A storage is resized to nothing and back, so every view of a buffer (parameters, buckets, shards of
the optimizer) stays valid once it is back. GPUs copy to page-locked memory, which is slow to get
and therefore kept from trip to trip.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import torch

from verl_hpc.engines.protocol import HostCopy

# Torch rounds page-locked allocations up to powers of two; pieces of one keep the waste small.
_PIECE_BYTES = 1 << 28


class Storages:
    """Some that leave together.

    Args:
        find: tensors that lie in them.
        keeps: what they hold; they come back as zeros if not.
        tells: `changed` is called whenever they hold something new, so that what has not changed is
            not copied again.
    """

    def __init__(
        self,
        find: Callable[[], Iterable[torch.Tensor]],
        keeps: bool = True,
        tells: bool = False,
    ) -> None:
        self._find, self._keeps, self._tells = find, keeps, tells
        self._away: list[tuple[torch.Tensor, Sequence[torch.Tensor], int]] | None = None
        self._page_locked: dict[int, list[torch.Tensor]] = {}
        self._is_copied = False
        """Whether page-locked memory holds what they hold."""

    @property
    def are_away(self) -> bool:
        return self._away is not None

    def changed(self) -> None:
        """What page-locked memory holds is old."""
        self._is_copied = False

    def leave(self, once: bool = False) -> int:
        """Free their device memory.

        Args:
            once: take ordinary host memory, which copies slowly and is given back.

        Returns:
            Bytes freed.
        """
        if self._away is not None:
            return 0
        tensors = list(self.tensors())
        on_gpu = any(tensor.is_cuda for tensor in tensors)
        copies = self.copied(tensors, once) if self._keeps else [()] * len(tensors)
        self._away = []
        freed = 0
        for tensor, kept in zip(tensors, copies, strict=True):
            storage = tensor.untyped_storage()
            size = storage.nbytes()
            self._away.append((tensor, kept, size))
            storage.resize_(0)
            freed += size
        if on_gpu:
            # The caching allocator would keep what was freed from the other engine.
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
        return freed

    def come_back(self) -> None:
        """Undo `leave`."""
        away, self._away = self._away or [], None
        for tensor, kept, size in away:
            tensor.untyped_storage().resize_(size)
            fill(tensor, kept)
            if not kept:
                for piece in _pieces(tensor):
                    piece.zero_()

    def copied(self, tensors: Sequence[torch.Tensor], once: bool = False) -> HostCopy:
        """What tensors hold, in host memory; in memory that stays, if they are on a GPU.

        Args:
            tensors: all of `tensors()`.
            once: as in `leave`.
        """
        stays = not once and any(tensor.is_cuda for tensor in tensors)
        sizes = [tensor.untyped_storage().nbytes() for tensor in tensors]
        copies = [self._host_memory(i, size, stays) for i, size in enumerate(sizes)]
        is_known = False
        if self._tells and stays:
            is_known, self._is_copied = self._is_copied, True
        for tensor, kept in zip(tensors, copies, strict=True) if not is_known else ():
            _keep(tensor, kept)
        return copies

    def copy(self) -> HostCopy:
        """The same in memory of its own, page-locked on GPUs."""
        found = []
        for tensor in self.tensors():
            sizes = _piece_sizes(tensor.untyped_storage().nbytes())
            found.append([_host_piece(n, tensor.is_cuda) for n in sizes])
            _keep(tensor, found[-1])
        return found

    def tensors(self) -> Iterator[torch.Tensor]:
        """One tensor per storage that is on the device."""
        seen: set[int] = set()
        for tensor in self._find():
            key = tensor.untyped_storage().data_ptr()
            if key not in seen and tensor.untyped_storage().nbytes():
                seen.add(key)
                yield tensor

    def _host_memory(self, index: int, num_bytes: int, page_locked: bool) -> list[torch.Tensor]:
        if not page_locked or index not in self._page_locked:
            found = [_host_piece(n, page_locked) for n in _piece_sizes(num_bytes)]
            if not page_locked:
                return found
            self._page_locked[index] = found
        return self._page_locked[index]


class SharedStorages(Storages):
    """Those that several engines compute with: on the device while one of them needs them.

    Args:
        find: tensors that lie in them.
    """

    def __init__(self, find: Callable[[], Iterable[torch.Tensor]]) -> None:
        super().__init__(find, tells=True)
        self._needed_by: set[object] = set()

    def need(self, user: object) -> None:
        """Have them on the device."""
        self._needed_by.add(user)
        self.come_back()

    def release(self, user: object, once: bool = False) -> int:
        """Let them leave, if nobody else needs them.

        Returns:
            Bytes freed.
        """
        self._needed_by.discard(user)
        return 0 if self._needed_by else self.leave(once)


def fill(tensor: torch.Tensor, kept: Sequence[torch.Tensor]) -> None:
    """Give a tensor's storage what a copy holds."""
    for piece, there in zip(_pieces(tensor), kept, strict=False):
        piece.copy_(there, non_blocking=tensor.is_cuda)


def _host_piece(num_bytes: int, page_locked: bool) -> torch.Tensor:
    return torch.empty(num_bytes, dtype=torch.uint8, pin_memory=page_locked)


def _keep(tensor: torch.Tensor, kept: Sequence[torch.Tensor]) -> None:
    for piece, there in zip(_pieces(tensor), kept, strict=True):
        there.copy_(piece, non_blocking=tensor.is_cuda)


def _pieces(tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """All bytes of a tensor's storage, in pieces."""
    storage = tensor.untyped_storage()
    whole = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(storage)
    return whole.split(_PIECE_BYTES)


def _piece_sizes(num_bytes: int) -> list[int]:
    return [min(_PIECE_BYTES, num_bytes - at) for at in range(0, num_bytes, _PIECE_BYTES)]
