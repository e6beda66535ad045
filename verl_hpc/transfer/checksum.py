"""Fingerprints of bytes, to compare what arrived with what was sent."""

from __future__ import annotations

import ctypes
from functools import cache, lru_cache
from importlib.util import find_spec
from typing import Any

import torch
import xxhash

_ROW = 1 << 12


def checksum(tensor: torch.Tensor) -> torch.Tensor:
    """64-bit fingerprint of a tensor's elements in row-major order, as an int64 scalar on its
    device.

    Equal bytes give equal fingerprints on the same kind of device. On CPUs it is xxh3; on GPUs a
    sum of words, each multiplied by an odd number of its position, modulo 2^64.
    """
    flat = tensor.detach().contiguous().view(-1).view(torch.uint8)
    if flat.device.type == "cpu":
        digest = Digest()
        digest.add(flat)
        return torch.tensor(digest.found(), dtype=torch.int64)
    return position_weighted_sum(flat)


class Digest:
    """`checksum` of host memory, piece by piece."""

    def __init__(self) -> None:
        self._hash = xxhash.xxh3_64()

    def add(self, piece: torch.Tensor) -> None:
        """Add a contiguous tensor's bytes."""
        self._hash.update(_bytes_at(piece.data_ptr(), piece.nbytes))

    def found(self) -> int:
        """Checksum of all pieces."""
        return int(self._hash.intdigest()) - (1 << 63)


@lru_cache(maxsize=1 << 14)
def _bytes_at(address: int, num_bytes: int) -> Any:
    """Memory that a tensor has now. Not Tensor.numpy(): it forbids resizing the storage for good,
    and offloading resizes it. Kept, since what the garbage collector must look at costs more."""
    return (ctypes.c_char * num_bytes).from_address(address)


def position_weighted_sum(flat: torch.Tensor) -> torch.Tensor:
    """The GPU's fingerprint of a one-dimensional uint8 tensor; runs on any device.

    The p-th word of 4 bytes counts 2 p + 1 times, modulo 2^64. One flipped bit changes the sum, and
    so do two of the same weight in less than 2^31 words; sums of words of 8 bytes would miss two
    flipped signs. On GPUs Triton reads every byte once; PyTorch's sums first widen the words.
    """
    num_words, rest = divmod(flat.numel(), 4)
    words = _words(flat[: 4 * num_words])
    total = _in_one_kernel(words) if _has_triton(words.device.type) else _by_rows(words)
    if rest:
        (last,) = torch.nn.functional.pad(flat[4 * num_words :], (0, 4 - rest)).view(torch.int32)
        total = total + last.to(torch.int64) * (2 * num_words + 1)
    return total


def _words(flat: torch.Tensor) -> torch.Tensor:
    aligned = flat if flat.data_ptr() % 4 == 0 and flat.storage_offset() % 4 == 0 else flat.clone()
    return aligned.view(torch.int32)


@cache
def _has_triton(device: str) -> bool:
    return device == "cuda" and find_spec("triton") is not None


def _in_one_kernel(words: torch.Tensor) -> torch.Tensor:
    from verl_hpc.transfer.triton_sum import weighted_sum

    return weighted_sum(words)


def _by_rows(words: torch.Tensor) -> torch.Tensor:
    """Sum in rows, so that two plain sums, over rows and over columns, are all that is needed."""
    num_rows = words.numel() // _ROW
    whole = words[: num_rows * _ROW].view(num_rows, _ROW)
    return _weighted(whole, 0) + _weighted(words[num_rows * _ROW :].view(1, -1), num_rows)


def _weighted(rows: torch.Tensor, first_row: int) -> torch.Tensor:
    """Sum of word times (2 p + 1), where p = row * _ROW + column."""
    over_rows = rows.sum(0, dtype=torch.int64)
    over_columns = rows.sum(1, dtype=torch.int64)
    columns = torch.arange(rows.shape[1], dtype=torch.int64, device=rows.device)
    starts = torch.arange(
        first_row, first_row + rows.shape[0], dtype=torch.int64, device=rows.device
    )
    return (over_rows * (2 * columns + 1)).sum() + (over_columns * starts).sum() * (2 * _ROW)
