"""Host memory for what a phase does not need: parameters, gradients, optimizer state.

Storage is resized to nothing and back, so every view of a buffer (parameters, buckets, shards of
the optimizer) stays valid once it is back.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch

from verl_hpc.engines.protocol import Part

if TYPE_CHECKING:
    from verl_hpc.engines.megatron.optimizer import Optimizer

# Torch rounds page-locked allocations up to powers of two; pieces of one keep the waste small.
_PIECE_BYTES = 1 << 28


class HostStore:
    """Moves the parts of one engine to host memory and back.

    GPUs copy to page-locked memory, which is slow to get and therefore kept from trip to trip.
    """

    def __init__(self, chunks: list[Any], optimizer: Optimizer | None) -> None:
        self._chunks = chunks
        self._optimizer = optimizer
        self._away: dict[Part, list[tuple[torch.Tensor, list[torch.Tensor], int]]] = {}
        self._page_locked: dict[tuple[Part, int], list[torch.Tensor]] = {}

    def offload(self, part: Part, once: bool = False) -> int:
        """Free the device memory of `part`; gradients are dropped, the rest is kept on the host.

        Args:
            part: what to move.
            once: take ordinary memory, which copies slowly and is given back.

        Returns:
            Bytes freed.
        """
        if part in self._away:
            return 0
        self._away[part] = []
        freed = 0
        on_gpu = False
        for index, tensor in enumerate(self._tensors(part)):
            storage = tensor.untyped_storage()
            size = storage.nbytes()
            on_gpu = tensor.is_cuda
            kept = (
                []
                if part == "gradients"
                else self._host_memory(part, index, size, on_gpu and not once)
            )
            for piece, there in zip(_pieces(tensor), kept, strict=False):
                there.copy_(piece, non_blocking=on_gpu)
            self._away[part].append((tensor, kept, size))
            storage.resize_(0)
            freed += size
        if on_gpu:
            # The caching allocator would keep what was freed from the other engine.
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
        return freed

    def onload(self, part: Part) -> None:
        """Undo `offload`; gradients come back as zeros."""
        for tensor, kept, size in self._away.pop(part, []):
            tensor.untyped_storage().resize_(size)
            for piece, there in zip(_pieces(tensor), kept, strict=False):
                piece.copy_(there, non_blocking=tensor.is_cuda)
            if not kept:
                for piece in _pieces(tensor):
                    piece.zero_()

    def _host_memory(
        self, part: Part, index: int, num_bytes: int, page_locked: bool
    ) -> list[torch.Tensor]:
        if not page_locked:
            return [torch.empty(n, dtype=torch.uint8) for n in _piece_sizes(num_bytes)]
        key = part, index
        if key not in self._page_locked:
            self._page_locked[key] = [
                torch.empty(n, dtype=torch.uint8, pin_memory=True) for n in _piece_sizes(num_bytes)
            ]
        return self._page_locked[key]

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
            for chunk in self._chunks if self._optimizer is not None else ():
                yield from (buffer.grad_data for buffer in chunk.buffers)
        elif self._optimizer is not None:
            parameters = {
                p.untyped_storage().data_ptr() for c in self._chunks for p in c.parameters()
            }
            # In float32 the master weights are the parameters themselves.
            for tensor in self._optimizer.state_tensors().values():
                if tensor.untyped_storage().data_ptr() not in parameters:
                    yield tensor


def _pieces(tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """All bytes of a tensor's storage, in pieces."""
    storage = tensor.untyped_storage()
    whole = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(storage)
    return whole.split(_PIECE_BYTES)


def _piece_sizes(num_bytes: int) -> list[int]:
    return [min(_PIECE_BYTES, num_bytes - at) for at in range(0, num_bytes, _PIECE_BYTES)]
