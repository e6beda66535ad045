"""Offload what a phase does not need to host memory: parameters, gradients, optimizer state.

A storage is resized to 0 and back, so every view of a buffer (parameters, buckets, shards of the
optimizer) is valid again afterwards. GPUs copy to page-locked memory, which is slow to allocate and
therefore kept for the next time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Literal

import torch

from verl_hpc.engines.protocol import HostCopy, Part

Memory = Part | Literal["trained", "frozen"]
"""A part, or only the trained parameters, or only the frozen ones in the engine's own memory."""

Candidates = Callable[[Memory], Iterable[torch.Tensor]]

# Torch rounds page-locked allocations up to powers of two: pieces of one, which all tensors share
# that are offloaded together, keep the waste small.
_PIECE_BYTES = 1 << 28


class HostStore:
    """Moves the parts of one engine to host memory and back.

    Args:
        candidates: lists tensors that cover all storages of a part; several may share a storage.
        only_trained: frozen parameters never change; `copy` leaves them out.
        base: store of the engine that holds this one's frozen parameters. They are offloaded when
            neither engine needs its parameters.
    """

    def __init__(
        self, candidates: Candidates, only_trained: bool = False, base: HostStore | None = None
    ) -> None:
        changing: Memory = "trained" if only_trained else "parameters"
        self._changing = Storages(lambda: candidates(changing), tells=True)
        self._own_frozen = Storages(
            lambda: candidates("frozen") if only_trained else (), tells=True
        )
        self._frozen: list[Storages] = [self._own_frozen]
        if base is not None:
            self._frozen += base._frozen
        for frozen in self._frozen:
            frozen.need(self)
        self._gradients = Storages(lambda: candidates("gradients"), keeps=False)
        self._state = Storages(lambda: candidates("optimizer"))
        self._parts: dict[Part, list[Storages]] = {
            "parameters": [self._changing, *self._frozen],
            "gradients": [self._gradients],
            "optimizer": [self._state],
        }

    def weights_changed(self) -> None:
        """Mark the host copy of trained parameters as outdated."""
        self._changing.changed()

    def weights_loaded(self) -> None:
        """Mark the host copy of all parameters as outdated."""
        self._changing.changed()
        self._own_frozen.changed()

    def offload(self, part: Part, once: bool = False) -> int:
        """Free the device memory of `part`; gradients are dropped, the rest is kept on the host.

        Args:
            part: what to move.
            once: use pageable host memory, which copies slowly and is freed afterwards.

        Returns:
            Bytes freed.
        """
        return sum(storages.release(self, once) for storages in self._parts[part])

    def onload(self, part: Part) -> None:
        """Undo `offload`; gradients come back as zeros."""
        for storages in self._parts[part]:
            storages.need(self)

    def copy(self) -> HostCopy:
        """Return a new host copy of the trained parameters, page-locked on GPUs."""
        return self._changing.copy()

    @contextmanager
    def exchanged(self, values: HostCopy) -> Iterator[None]:
        """Use other parameters inside this context; the previous ones come back bit for bit.

        The previous ones are copied to the host only if they changed since they were last offloaded
        or exchanged.

        Args:
            values: a `copy` of this engine.
        """
        assert not self._changing.are_away, "parameters are away"
        tensors = list(self._changing.tensors())
        own = self._changing.copied(tensors)
        try:
            for tensor, other in zip(tensors, values, strict=True):
                fill(tensor, other)
            yield
        finally:
            for tensor, before in zip(tensors, own, strict=True):
                fill(tensor, before)


class Storages:
    """Storages that are offloaded together, unless another engine needs them.

    Args:
        find: lists tensors in these storages.
        keeps: whether to keep their contents; if not they come back as zeros.
        tells: the caller reports every change by `changed`, so unchanged contents are not copied
            again.
    """

    def __init__(
        self, find: Callable[[], Iterable[torch.Tensor]], keeps: bool = True, tells: bool = False
    ) -> None:
        self._find, self._keeps, self._tells = find, keeps, tells
        self._away: list[tuple[torch.Tensor, Sequence[torch.Tensor], int]] | None = None
        self._needed_by: set[object] = set()
        self._page_locked: HostCopy = []
        self._is_copied = False
        """Whether the page-locked copy is current."""

    @property
    def are_away(self) -> bool:
        return self._away is not None

    def changed(self) -> None:
        """Mark the page-locked copy as outdated."""
        self._is_copied = False

    def release(self, user: object, once: bool = False) -> int:
        """Free the storages' device memory unless another user needs them.

        Args:
            user: an engine's store.
            once: use pageable host memory, which copies slowly and is freed afterwards.

        Returns:
            Bytes freed.
        """
        self._needed_by.discard(user)
        if self._needed_by or self._away is not None:
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

    def need(self, user: object) -> None:
        """Bring the storages to the device for `user`."""
        self._needed_by.add(user)
        away, self._away = self._away or [], None
        for tensor, kept, size in away:
            tensor.untyped_storage().resize_(size)
            if kept:
                fill(tensor, kept)
            else:
                _bytes_of(tensor).zero_()

    def copied(self, tensors: Sequence[torch.Tensor], once: bool = False) -> HostCopy:
        """Copy tensors to host memory; from a GPU, to page-locked memory that is kept.

        Args:
            tensors: all of `tensors()`.
            once: see `release`.
        """
        stays = not once and any(tensor.is_cuda for tensor in tensors)
        sizes = [tensor.untyped_storage().nbytes() for tensor in tensors]
        copies = self._page_locked if stays else host_memory(sizes, page_locked=False)
        if [sum(map(len, kept)) for kept in copies] != sizes:
            copies = self._page_locked = host_memory(sizes, page_locked=True)
            self._is_copied = False
        is_known = False
        if self._tells and stays:
            is_known, self._is_copied = self._is_copied, True
        for tensor, kept in zip(tensors, copies, strict=True) if not is_known else ():
            keep(tensor, kept)
        return copies

    def copy(self) -> HostCopy:
        """Return a new host copy of the tensors, page-locked on GPUs."""
        tensors = list(self.tensors())
        sizes = [tensor.untyped_storage().nbytes() for tensor in tensors]
        copies = host_memory(sizes, any(tensor.is_cuda for tensor in tensors))
        for tensor, kept in zip(tensors, copies, strict=True):
            keep(tensor, kept)
        return copies

    def tensors(self) -> Iterator[torch.Tensor]:
        """Yield one tensor per storage on the device."""
        seen: set[int] = set()
        for tensor in self._find():
            key = tensor.untyped_storage().data_ptr()
            if key not in seen and tensor.untyped_storage().nbytes():
                seen.add(key)
                yield tensor


def fill(tensor: torch.Tensor, kept: Sequence[torch.Tensor]) -> None:
    """Copy host pieces into a tensor's storage."""
    for piece, there in _pairs(tensor, kept):
        piece.copy_(there, non_blocking=tensor.is_cuda)


def keep(tensor: torch.Tensor, kept: Sequence[torch.Tensor]) -> None:
    """Copy a tensor's storage into host pieces."""
    for piece, there in _pairs(tensor, kept):
        there.copy_(piece, non_blocking=tensor.is_cuda)


def host_memory(sizes: Sequence[int], page_locked: bool) -> HostCopy:
    """Allocate host memory for storages of these sizes, one after another in the same pieces."""
    total = sum(sizes)
    whole = [
        torch.empty(min(_PIECE_BYTES, total - at), dtype=torch.uint8, pin_memory=page_locked)
        for at in range(0, total, _PIECE_BYTES)
    ]
    copies: list[list[torch.Tensor]] = []
    first = 0
    for size in sizes:
        copies.append([])
        last = first + size
        while first < last:
            number, start = divmod(first, _PIECE_BYTES)
            stop = min(start + last - first, _PIECE_BYTES)
            copies[-1].append(whole[number][start:stop])
            first += stop - start
    return copies


def _pairs(
    tensor: torch.Tensor, kept: Sequence[torch.Tensor]
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield the parts of a tensor's storage with their pieces of host memory."""
    return zip(_bytes_of(tensor).split([len(piece) for piece in kept]), kept, strict=True)


def _bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return all bytes of a tensor's storage."""
    size, rest = divmod(tensor.untyped_storage().nbytes(), tensor.itemsize)
    assert not rest, (tensor.dtype, rest)
    return tensor.detach().as_strided((size,), (1,), 0).view(torch.uint8)
