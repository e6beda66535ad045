"""Keep inputs of recomputed layers in host memory between forward and backward pass.

With recompute: full they are nearly all that a micro-batch keeps. Copies run on the device's
current stream, so only the device's next computation waits for them.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import TypeAlias

import torch

_Kept: TypeAlias = torch.Tensor | tuple[torch.device, torch.Tensor]


class HostActivations:
    """Moves hidden states that autograd saves to host memory.

    Args:
        weights: parameters; tensors in their memory are not moved.
        hidden_size: last dimension of hidden states.
    """

    def __init__(self, weights: Iterable[torch.Tensor], hidden_size: int) -> None:
        self._weights = {_memory(weight) for weight in weights}
        self._hidden_size = hidden_size

    def saving(self) -> AbstractContextManager[None]:
        """Move hidden states saved inside this context to the host; they return when used."""
        return torch.autograd.graph.saved_tensors_hooks(self._away, _back)

    def _away(self, tensor: torch.Tensor) -> _Kept:
        is_hidden = tensor.dim() == 3 and tensor.shape[-1] == self._hidden_size
        if not is_hidden or _memory(tensor) in self._weights:
            return tensor
        on_host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
        return tensor.device, on_host.copy_(tensor, non_blocking=True)


def _back(kept: _Kept) -> torch.Tensor:
    if isinstance(kept, torch.Tensor):
        return kept
    device, on_host = kept
    return on_host.to(device, non_blocking=True)


def _memory(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
