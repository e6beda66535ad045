"""Offload what a phase does not need to host memory: parameters, gradients, optimizer state."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Literal

import torch

from verl_hpc.engines.protocol import HostCopy, Part
from verl_hpc.engines.shared.storages import SharedStorages, Storages, fill

Memory = Part | Literal["trained", "frozen"]
"""A part, or only the trained parameters, or only the frozen ones in the engine's own memory."""

Candidates = Callable[[Memory], Iterable[torch.Tensor]]


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
        self._own_frozen = SharedStorages(lambda: candidates("frozen") if only_trained else ())
        self._frozen: list[SharedStorages] = [self._own_frozen]
        if base is not None:
            self._frozen += base._frozen
        for frozen in self._frozen:
            frozen.need(self)
        self._gradients = Storages(lambda: candidates("gradients"), keeps=False)
        self._state = Storages(lambda: candidates("optimizer"))

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
        if part == "parameters":
            freed = self._changing.leave(once)
            return freed + sum(frozen.release(self, once) for frozen in self._frozen)
        return self._of(part).leave(once)

    def onload(self, part: Part) -> None:
        """Undo `offload`; gradients come back as zeros."""
        if part == "parameters":
            self._changing.come_back()
            for frozen in self._frozen:
                frozen.need(self)
        else:
            self._of(part).come_back()

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

    def _tensors(self, part: Part) -> Iterator[torch.Tensor]:
        """Yield one tensor per storage of `part` on the device."""
        if part == "parameters":
            for storages in (self._changing, *self._frozen):
                yield from storages.tensors()
        else:
            yield from self._of(part).tensors()

    def _of(self, part: Part) -> Storages:
        return self._gradients if part == "gradients" else self._state
