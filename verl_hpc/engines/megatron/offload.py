"""Host memory for what a phase does not need: parameters, gradients, optimizer state.

Storage is resized to nothing and back, so every view of a buffer (parameters, buckets, shards of
the optimizer) stays valid once it is back.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal

import torch

if TYPE_CHECKING:
    from verl_hpc.engines.megatron.optimizer import Optimizer

Part = Literal["parameters", "gradients", "optimizer"]


class HostStore:
    """Moves the parts of one engine to host memory and back."""

    def __init__(self, chunks: list[Any], optimizer: Optimizer | None) -> None:
        self._chunks = chunks
        self._optimizer = optimizer
        self._away: dict[Part, list[tuple[torch.Tensor, torch.Tensor | None, int]]] = {}

    def put_away(self, part: Part) -> int:
        """Free the device memory of `part`; gradients are dropped, the rest is kept on the host.

        Returns:
            Bytes freed.
        """
        if part in self._away:
            return 0
        self._away[part] = []
        freed = 0
        for tensor in self._tensors(part):
            storage = tensor.untyped_storage()
            size = storage.nbytes()
            kept = None if part == "gradients" else _whole(tensor).to("cpu", copy=True)
            self._away[part].append((tensor, kept, size))
            storage.resize_(0)
            freed += size
        return freed

    def bring_back(self, part: Part) -> None:
        """Undo `put_away`; gradients come back as zeros."""
        for tensor, kept, size in self._away.pop(part, []):
            tensor.untyped_storage().resize_(size)
            whole = _whole(tensor)
            whole.zero_() if kept is None else whole.copy_(kept)

    @property
    def away(self) -> frozenset[Part]:
        """Parts that are on the host now."""
        return frozenset(self._away)

    def _tensors(self, part: Part) -> Iterator[torch.Tensor]:
        """One tensor per storage."""
        seen: set[int] = set()
        for tensor in self._candidates(part):
            key = tensor.untyped_storage().data_ptr()
            if key not in seen and tensor.untyped_storage().nbytes():
                seen.add(key)
                yield tensor

    def _candidates(self, part: Part) -> Iterator[torch.Tensor]:
        if part == "parameters":
            for chunk in self._chunks:
                yield from (p.detach() for p in chunk.parameters())
        elif part == "gradients":
            for chunk in self._chunks:
                yield from (buffer.grad_data for buffer in chunk.buffers)
        elif self._optimizer is not None:
            parameters = {
                p.untyped_storage().data_ptr() for c in self._chunks for p in c.parameters()
            }
            # In float32 the master weights are the parameters themselves.
            for tensor in self._optimizer.state_tensors().values():
                if tensor.untyped_storage().data_ptr() not in parameters:
                    yield tensor


def _whole(tensor: torch.Tensor) -> torch.Tensor:
    """All of a tensor's storage, as one flat tensor of its type."""
    count = tensor.untyped_storage().nbytes() // tensor.element_size()
    return tensor.as_strided((count,), (1,), 0)
