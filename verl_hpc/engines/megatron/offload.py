"""Host memory for what a phase does not need: parameters, gradients, optimizer state.

Storage is resized to nothing and back, so every view of a buffer (parameters, buckets, shards of
the optimizer) stays valid once it is back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

import torch

from verl_hpc.engines.protocol import HostCopy, Part

if TYPE_CHECKING:
    from verl_hpc.engines.megatron.optimizer import Optimizer

Memory = Part | Literal["trained"]
"""A part, or of the parameters those that are trained."""

Candidates = Callable[[Memory], Iterable[torch.Tensor]]

# Torch rounds page-locked allocations up to powers of two; pieces of one keep the waste small.
_PIECE_BYTES = 1 << 28


class HostStore:
    """Moves the parts of one engine to host memory and back.

    GPUs copy to page-locked memory, which is slow to get and therefore kept from trip to trip.

    Args:
        candidates: tensors that have all storages of a part; a storage may have several.
        only_trained: the other parameters never change, so that `copy` leaves them out.
    """

    def __init__(self, candidates: Candidates, only_trained: bool = False) -> None:
        self._changing: Memory = "trained" if only_trained else "parameters"
        self._candidates = candidates
        self._away: dict[Part, list[tuple[torch.Tensor, Sequence[torch.Tensor], int]]] = {}
        self._page_locked: dict[tuple[Memory, int], list[torch.Tensor]] = {}
        self._has_weights = False
        """Whether page-locked memory holds the parameters as they are."""

    def weights_changed(self) -> None:
        """What page-locked memory holds of the parameters is old."""
        self._has_weights = False

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
        tensors = list(self._tensors(part))
        on_gpu = any(tensor.is_cuda for tensor in tensors)
        copies = [()] * len(tensors) if part == "gradients" else self._copied(part, tensors, once)
        self._away[part] = []
        freed = 0
        for tensor, kept in zip(tensors, copies, strict=True):
            storage = tensor.untyped_storage()
            size = storage.nbytes()
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
            _fill(tensor, kept)
            if not kept:
                for piece in _pieces(tensor):
                    piece.zero_()

    def copy(self) -> HostCopy:
        """The parameters that change, in page-locked memory of their own on GPUs."""
        found = []
        for tensor in self._tensors(self._changing):
            sizes = _piece_sizes(tensor.untyped_storage().nbytes())
            found.append([_host_piece(n, tensor.is_cuda) for n in sizes])
            _keep(tensor, found[-1])
        return found

    @contextmanager
    def exchanged(self, values: HostCopy) -> Iterator[None]:
        """Have other parameters inside; those of before come back bit for bit.

        They are copied to page-locked memory only where they have changed since they were offloaded
        to it or exchanged.

        Args:
            values: a `copy` of the same engine's.
        """
        assert "parameters" not in self._away, "parameters are away"
        tensors = list(self._tensors(self._changing))
        own = self._copied(self._changing, tensors)
        try:
            for tensor, other in zip(tensors, values, strict=True):
                _fill(tensor, other)
            yield
        finally:
            for tensor, before in zip(tensors, own, strict=True):
                _fill(tensor, before)

    def _copied(
        self, part: Memory, tensors: Sequence[torch.Tensor], once: bool = False
    ) -> HostCopy:
        """What tensors hold, in host memory; in memory that stays, if they are on a GPU."""
        stays = not once and any(tensor.is_cuda for tensor in tensors)
        sizes = [tensor.untyped_storage().nbytes() for tensor in tensors]
        copies = [self._host_memory(part, i, size, stays) for i, size in enumerate(sizes)]
        is_known = False
        if part == "parameters" and stays:
            is_known, self._has_weights = self._has_weights, True
        for tensor, kept in zip(tensors, copies, strict=True) if not is_known else ():
            _keep(tensor, kept)
        return copies

    def _host_memory(
        self, part: Memory, index: int, num_bytes: int, page_locked: bool
    ) -> list[torch.Tensor]:
        key = part, index
        if not page_locked or key not in self._page_locked:
            found = [_host_piece(n, page_locked) for n in _piece_sizes(num_bytes)]
            if not page_locked:
                return found
            self._page_locked[key] = found
        return self._page_locked[key]

    def _tensors(self, part: Memory) -> Iterator[torch.Tensor]:
        """One tensor per storage."""
        seen: set[int] = set()
        for tensor in self._candidates(part):
            key = tensor.untyped_storage().data_ptr()
            if key not in seen and tensor.untyped_storage().nbytes():
                seen.add(key)
                yield tensor


def memory_of(chunks: Sequence[Any], optimizer: Optimizer | None) -> Candidates:
    """Of Megatron-core's chunks, and their optimizer where they are trained."""

    def candidates(part: Memory) -> Iterator[torch.Tensor]:
        if part in ("parameters", "trained"):
            for chunk in chunks:
                chosen = (p for p in chunk.parameters() if p.requires_grad or part != "trained")
                yield from (p.detach() for p in chosen)
        elif part == "gradients":
            for chunk in chunks if optimizer is not None else ():
                buffers = (*chunk.buffers, *chunk.expert_parallel_buffers)
                yield from (buffer.grad_data for buffer in buffers)
        elif optimizer is not None:
            parameters = {p.untyped_storage().data_ptr() for c in chunks for p in c.parameters()}
            # In float32 the master weights are the parameters themselves.
            for tensor in optimizer.state_tensors().values():
                if tensor.untyped_storage().data_ptr() not in parameters:
                    yield tensor

    return candidates


def _host_piece(num_bytes: int, page_locked: bool) -> torch.Tensor:
    return torch.empty(num_bytes, dtype=torch.uint8, pin_memory=page_locked)


def _keep(tensor: torch.Tensor, kept: Sequence[torch.Tensor]) -> None:
    for piece, there in zip(_pieces(tensor), kept, strict=True):
        there.copy_(piece, non_blocking=tensor.is_cuda)


def _fill(tensor: torch.Tensor, kept: Sequence[torch.Tensor]) -> None:
    for piece, there in zip(_pieces(tensor), kept, strict=False):
        piece.copy_(there, non_blocking=tensor.is_cuda)


def _pieces(tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """All bytes of a tensor's storage, in pieces."""
    storage = tensor.untyped_storage()
    whole = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(storage)
    return whole.split(_PIECE_BYTES)


def _piece_sizes(num_bytes: int) -> list[int]:
    return [min(_PIECE_BYTES, num_bytes - at) for at in range(0, num_bytes, _PIECE_BYTES)]
