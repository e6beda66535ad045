"""Copy of a rank's saved tensors in host memory, which is written while training continues."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import torch

from verl_hpc.checkpoint.tensor_file import Stored

_ALIGNED = 64

_logger = logging.getLogger(__name__)


class HostCopy:
    """Memory for one rank's tensors in their file's layout, reused for every save.

    New memory is slow, since the system clears every page; GPUs copy fast only to page-locked
    memory.

    Args:
        tensors: descriptions of the tensors to copy.
        on_gpu: page-lock the memory.
    """

    def __init__(self, tensors: Sequence[Stored], on_gpu: bool) -> None:
        self.tensors = tuple(tensors)
        self._starts, end = [], 0
        for stored in self.tensors:
            self._starts.append(end)
            end += -(-stored.num_bytes // _ALIGNED) * _ALIGNED
        # What lies beyond the edges of tensors stays zero.
        self._memory = torch.zeros(end, dtype=torch.uint8)
        if on_gpu and self.num_bytes:
            self._page_lock()

    @property
    def num_bytes(self) -> int:
        """Size of the copy's memory."""
        return self._memory.numel()

    def take(self, tensors: Iterable[torch.Tensor]) -> None:
        """Copy the tensors, which may change afterwards."""
        on_gpu = False
        for stored, tensor, start in zip(self.tensors, tensors, self._starts, strict=True):
            on_gpu = on_gpu or tensor.is_cuda
            stored.pack(tensor, self._memory[start : start + stored.num_bytes])
        if on_gpu:
            torch.cuda.synchronize()

    def parts(self) -> Iterator[np.ndarray]:
        """Yield the copied tensors, for `TensorFile.write`."""
        memory = np.from_dlpack(self._memory)
        for stored, start in zip(self.tensors, self._starts, strict=True):
            yield memory[start : start + stored.num_bytes]

    def _page_lock(self) -> None:
        """Page-lock the memory in place, since torch rounds page-locked allocations up to powers of
        two."""
        runtime, start = torch.cuda.cudart(), self._memory.data_ptr()
        status = int(runtime.cudaHostRegister(start, self.num_bytes, 0))
        if status:
            _logger.warning("the copy that is saved is not page-locked (CUDA error %s)", status)
            return
        weakref.finalize(self, runtime.cudaHostUnregister, start).atexit = False
