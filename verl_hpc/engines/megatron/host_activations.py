"""Keep inputs of recomputed layers in host memory between forward and backward pass.

With recompute: full they are nearly all that a micro-batch keeps. Copies run on a stream of their
own, beside the layers' computation. A backward pass needs them in the opposite order, so that when
one is asked for, the copy of the one before it starts.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from contextlib import AbstractContextManager
from functools import cached_property
from typing import TypeAlias

import torch

_Kept: TypeAlias = "torch.Tensor | Moved"


class HostActivations:
    """Moves hidden states that autograd saves to host memory.

    Args:
        weights: parameters; tensors in their memory are not moved.
        hidden_size: last dimension of hidden states.
    """

    def __init__(self, weights: Iterable[torch.Tensor], hidden_size: int) -> None:
        self._weights = {_memory(weight) for weight in weights}
        self._hidden_size = hidden_size
        # Weak: what a pass leaves is freed with its graph.
        self._last: weakref.ref[Moved] | None = None

    @cached_property
    def _stream(self) -> torch.cuda.Stream:
        return torch.cuda.Stream()

    def saving(self) -> AbstractContextManager[None]:
        """Move hidden states saved inside this context, which is of one forward pass, to the host;
        they return when used."""
        self._last = None
        return torch.autograd.graph.saved_tensors_hooks(self._away, _back)

    def _away(self, tensor: torch.Tensor) -> _Kept:
        is_hidden = tensor.dim() == 3 and tensor.shape[-1] == self._hidden_size
        if not is_hidden or _memory(tensor) in self._weights:
            return tensor
        before = self._last() if self._last is not None else None
        moved = Moved(tensor, self._stream if tensor.is_cuda else None, before)
        self._last = weakref.ref(moved)
        return moved


class Moved:
    """A tensor in host memory.

    Args:
        tensor: what to copy there.
        stream: runs copies of tensors on a GPU; None for host memory.
        before: the one that was moved before it in the same pass.
    """

    def __init__(
        self, tensor: torch.Tensor, stream: torch.cuda.Stream | None, before: Moved | None
    ) -> None:
        self._device, self._stream, self._before = tensor.device, stream, before
        self._here: torch.Tensor | None = None
        self._on_host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=stream is not None)
        self._copy(tensor, self._on_host, tensor)

    def back(self) -> torch.Tensor:
        """Return the tensor on its device, and begin to bring back the one before it."""
        self._begin()
        here, self._here = self._here, None
        assert here is not None
        if self._stream is not None:
            torch.cuda.current_stream().wait_event(self._copied)
        if self._before is not None:
            self._before._begin()
        return here

    def _begin(self) -> None:
        if self._here is None:
            self._here = torch.empty_like(self._on_host, device=self._device)
            self._copy(self._here, self._here, self._on_host)

    def _copy(self, on_device: torch.Tensor, to: torch.Tensor, frm: torch.Tensor) -> None:
        if self._stream is None:
            to.copy_(frm)
            return
        # What is computed so far comes first, also with what lay in the same memory before.
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            to.copy_(frm, non_blocking=True)
        self._copied = self._stream.record_event()
        # It may be freed before the copy has run.
        on_device.record_stream(self._stream)


def _back(kept: _Kept) -> torch.Tensor:
    return kept if isinstance(kept, torch.Tensor) else kept.back()


def _memory(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
