"""Inputs of recomputed layers in host memory, between a forward pass and its backward pass.

With recompute: full they are nearly all that a micro-batch keeps. Copies run on the device's own
stream: nobody waits for them but what the device computes next.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import TypeAlias

import torch

_Kept: TypeAlias = torch.Tensor | tuple[torch.device, torch.Tensor]


class HostActivations:
    """Moves what autograd saves of hidden states.

    Args:
        weights: whose memory stays where it is.
        hidden_size: last dimension of hidden states.
    """

    def __init__(self, weights: Iterable[torch.Tensor], hidden_size: int) -> None:
        self._weights = {_memory(weight) for weight in weights}
        self._hidden_size = hidden_size

    def saving(self) -> AbstractContextManager[None]:
        """Inside, what is saved for the backward pass is moved; it comes back when it is used."""
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
