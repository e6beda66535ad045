"""Fingerprints of tensors, to compare what arrived with what was sent."""

from __future__ import annotations

import numpy as np
import torch
import xxhash

_CHUNK = 1 << 22
_ODD = 0x9E3779B97F4A7C15 - (1 << 64)  # 2^64 / golden ratio, as a signed 64-bit number
_WORDS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def checksum(tensor: torch.Tensor) -> torch.Tensor:
    """64-bit fingerprint of a tensor's elements in row-major order, as an int64 scalar on its
    device.

    Equal bits give equal fingerprints on the same kind of device. On CPUs it is xxh3; on GPUs a
    sum of words, each multiplied by an odd number of its position, modulo 2^64.
    """
    flat = tensor.detach().contiguous().view(-1)
    if flat.device.type == "cpu":
        # Not Tensor.numpy(): it forbids resizing the storage for good, and offloading resizes it.
        digest = xxhash.xxh3_64_intdigest(np.from_dlpack(flat.view(torch.uint8)))
        return torch.tensor(digest - (1 << 63), dtype=torch.int64)
    return position_weighted_sum(flat)


def position_weighted_sum(flat: torch.Tensor) -> torch.Tensor:
    """The GPU's fingerprint of a one-dimensional tensor; runs on any device."""
    words = flat.view(_WORDS[flat.element_size()])
    total = torch.zeros((), dtype=torch.int64, device=flat.device)
    for start in range(0, words.numel(), _CHUNK):
        part = words[start : start + _CHUNK].to(torch.int64)
        place = torch.arange(start, start + part.numel(), dtype=torch.int64, device=flat.device)
        total += (part * (2 * place + 1) * _ODD).sum() + part.sum()
    return total
