"""Trained weights quantised to FP8 before they travel: values, and a scale of each block.

This follows vLLM's own block quantisation of a bfloat16 model (vLLM 0.32, `per_block_cast_to_fp8`
in `utils/deep_gemm.py`, without powers of two as scales), after DeepSeek-V3 (arXiv 2412.19437,
section 3.3): a block's scale is its largest magnitude divided by 448, the largest number of
float8_e4m3fn, and its values are multiplied with the scale's inverse and rounded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
import torch.distributed as dist
from torch.nn.functional import pad

from verl_hpc.layout.quantization import BLOCK, VALUES, scale_name, scale_shape, spread_tensors
from verl_hpc.layout.shard_map import Region, ShardMap
from verl_hpc.transfer.memory import window

_LEAST = 1e-4
"""Least magnitude of a block, as in vLLM."""
_MOST = torch.finfo(torch.float8_e4m3fn).max
_ELEMENTS_AT_A_TIME = 2**24


class Fp8Weights:
    """Quantised weights that a training rank sends in place of its own.

    Every rank of the world must quantise at the same time: where a block lies on several ranks, in
    parts, they agree on its largest magnitude.

    Args:
        trained: map of the weights as they are trained.
        sent: the same with quantised weights (`layout.quantization.quantised_source`).
        rank: this rank.
        dtype: weights are rounded to it first: that of an unquantised rollout.
        device: of this rank.
    """

    def __init__(
        self, trained: ShardMap, sent: ShardMap, rank: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        chosen = [n for n, s in trained.tensors.items() if sent.tensors[n].dtype != s.dtype]
        assert all(sent.tensors[name].dtype == VALUES for name in chosen)
        shapes = {name: scale_shape(trained.tensors[name].shape) for name in chosen}
        self._shapes = shapes
        self._spread = spread_tensors(trained, chosen)
        self._mine = [r for r in trained.held_by(rank) if r.tensor in shapes]
        self._dtype, self._device = dtype, device

    def quantised(self, weights: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Values and scales by local name, and the other weights themselves.

        Args:
            weights: of this rank, by local name.
        """
        with torch.no_grad():
            scales = self._scales(weights)
            result = dict(weights)
            values: dict[str, torch.Tensor] = {}
            for region in self._mine:
                name = region.view.name
                if name not in values:
                    values[name] = torch.empty_like(weights[name], dtype=torch.float8_e4m3fn)
                into = window(values, region.view, region)
                grid = scales[region.tensor]
                for rows, part, place in self._parts(weights, region):
                    into[rows] = quantise(part, grid, place)
        return result | values | {scale_name(name): grid for name, grid in scales.items()}

    def _scales(self, weights: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Scales of all blocks of each of this rank's weights; those of blocks that it has no part
        of are unused."""
        mine = {region.tensor for region in self._mine}
        grids = {
            name: torch.zeros(shape, dtype=torch.float32, device=self._device)
            for name, shape in self._shapes.items()
            if name in mine or name in self._spread
        }
        for region in self._mine:
            for _, part, place in self._parts(weights, region):
                largest = largest_of_blocks(part, place)
                first, (rows, columns) = [p // BLOCK for p in place], largest.shape
                grid = grids[region.tensor]
                grid = grid[first[0] : first[0] + rows, first[1] : first[1] + columns]
                torch.maximum(grid, largest, out=grid)
        # Ranks that hold parts of a block agree on its largest magnitude.
        if self._spread:
            together = torch.cat([grids[name].view(-1) for name in self._spread])
            dist.all_reduce(together, op=dist.ReduceOp.MAX)
            parts = together.split([grids[name].numel() for name in self._spread])
            for name, part in zip(self._spread, parts, strict=True):
                grids[name].copy_(part.view(grids[name].shape))
        return {name: scales_of(grid) for name, grid in grids.items() if name in mine}

    def _parts(
        self, weights: Mapping[str, torch.Tensor], region: Region
    ) -> Iterator[tuple[slice, torch.Tensor, tuple[int, int]]]:
        """Yield some rows of a region at a time, in the rollout's dtype: their slice, their values,
        and the position of the first element in the weight. Rows of a block stay together."""
        held = window(weights, region.view, region)
        top, left = region.box.start
        step = max(_ELEMENTS_AT_A_TIME // held.shape[1] // BLOCK, 1) * BLOCK
        first = 0
        while first < held.shape[0]:
            last = min(first + step - (top + first) % BLOCK, held.shape[0])
            rows = slice(first, last)
            yield rows, held[rows].to(self._dtype), (top + first, left)
            first = last


def largest_of_blocks(part: torch.Tensor, place: tuple[int, int]) -> torch.Tensor:
    """Largest magnitude of every block that a part of a matrix meets, float32.

    Args:
        part: (rows, columns).
        place: where its first element is in the matrix.
    """
    size = zip(place, part.shape, strict=True)
    above, below, before, behind = (n for at, of in size for n in _missing(at, of))
    blocks = pad(part.abs(), (before, behind, above, below))
    blocks = blocks.view(blocks.shape[0] // BLOCK, BLOCK, blocks.shape[1] // BLOCK, BLOCK)
    return blocks.amax(dim=(1, 3)).float()


def _missing(start: int, length: int) -> tuple[int, int]:
    """Number of elements by which blocks extend before and after a range."""
    return start % BLOCK, -(start + length) % BLOCK


def scales_of(largest: torch.Tensor) -> torch.Tensor:
    """Scales of blocks by their largest magnitudes."""
    # Divide by a tensor: by a number, PyTorch would multiply with its inverse on GPUs.
    return largest.clamp(min=_LEAST) / torch.full_like(largest, _MOST)


def quantise(part: torch.Tensor, scales: torch.Tensor, place: tuple[int, int]) -> torch.Tensor:
    """A part of a matrix in float8_e4m3fn.

    Args:
        part: (rows, columns).
        scales: of all blocks of the matrix.
        place: where the part's first element is in the matrix.
    """
    inverse = 1.0 / scales
    for dim, (start, length) in enumerate(zip(place, part.shape, strict=True)):
        first, last = start // BLOCK, -(-(start + length) // BLOCK)
        wide = inverse.narrow(dim, first, last - first).repeat_interleave(BLOCK, dim)
        inverse = wide.narrow(dim, start % BLOCK, length)
    return (part * inverse).to(torch.float8_e4m3fn)


def dequantised(values: torch.Tensor, scales: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """A matrix of quantised values in another type, rounded once.

    Args:
        values: (rows, columns), float8_e4m3fn.
        scales: of its blocks.
        dtype: of what is returned.
    """
    rows, columns = values.shape
    wide = scales.repeat_interleave(BLOCK, 0)[:rows].repeat_interleave(BLOCK, 1)[:, :columns]
    return (values.float() * wide).to(dtype)
