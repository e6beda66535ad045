"""Offload what a phase does not need to host memory: parameters, gradients, optimizer state."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Literal

import torch

from verl_hpc.engines.protocol import HostCopy, Part
from verl_hpc.engines.shared.storages import Storages, fill

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
        self._own_frozen = Storages(
            lambda: candidates("frozen") if only_trained else (), tells=True
        )
        self._frozen = [self._own_frozen, *(base._frozen if base is not None else ())]
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
