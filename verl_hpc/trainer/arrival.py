"""Merge adapters into a rollout engine's weights where they arrive.

The model's own weights travel once. Every generating rank keeps its share of them in host memory,
and in each step receives the A and B with which this share is merged::

    W = base + scale B A          computed in float32, rounded once, written where W lies

So weights keep their addresses, and nothing needs to know of the layouts but their shard maps. A
weight that the engine has in another type than the trainer is kept in the trainer's; in FP8 it is
quantised after it was merged, for a rank's part of it is whole blocks.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

import torch

from verl_hpc.config.lora import LoraConfig
from verl_hpc.engines.shared.offload import fill, host_memory, keep
from verl_hpc.layout.adapters import factor_name, factors_of, has_adapter
from verl_hpc.layout.quantization import BLOCK, scale_name
from verl_hpc.layout.shard_map import Region, ShardMap
from verl_hpc.planner.memory.kept_base import MERGED_ELEMENTS
from verl_hpc.rollout.protocol import RolloutEngine
from verl_hpc.transfer.fp8 import largest_of_blocks, quantise, scales_of
from verl_hpc.transfer.memory import window


class MergedOnArrival:
    """The base of one generating rank, and the adapters that it receives.

    Args:
        engine: this rank's engine.
        factors: map of the A and B that ranks receive (`layout.adapters.factor_map`), in the
            trainer's type.
        rank: this rank.
        lora: settings of the adapters.
        loses: whether the engine loses its weights while it sleeps; then all of them are kept,
            otherwise only those with adapters.
    """

    def __init__(
        self, engine: RolloutEngine, factors: ShardMap, rank: int, lora: LoraConfig, loses: bool
    ) -> None:
        self._engine, self._rank, self._lora = engine, rank, lora
        weights, by_name = engine.weights, defaultdict(list)
        held = engine.shard_map.held_by(rank)
        for region in held:
            by_name[region.view.name].append(region)
        self._at = {(region.tensor, region.box.start): region for region in held}
        self._regions: dict[str, list[Region]] = {
            name: regions
            for name, regions in by_name.items()
            if any(has_adapter(region.tensor, factors) for region in regions)
        }
        """Regions of every parameter that has an adapter, by local name."""
        (kind,) = {spec.dtype for spec in factors.tensors.values()}
        self._dtype: torch.dtype = getattr(torch, kind)
        self._apart = {name for name in self._regions if weights[name].dtype != self._dtype}
        """Those of which the engine has another type than the trainer."""
        names = [name for name in weights if loses or name in self._regions]
        # Storages are kept and filled as wholes.
        parts = [n for n in names if weights[n].untyped_storage().nbytes() != weights[n].nbytes]
        assert not parts, parts
        kinds = [self._dtype if name in self._apart else weights[name].dtype for name in names]
        sizes = [weights[n].numel() * kind.itemsize for n, kind in zip(names, kinds, strict=True)]
        device = next(iter(weights.values())).device
        self._kept = dict(zip(names, host_memory(sizes, device.type == "cuda"), strict=True))
        self.factors = {
            region.view.name: torch.empty(region.box.shape, dtype=self._dtype, device=device)
            for region in factors.held_by(rank)
        }
        """The A and B of this rank by local name, to be filled before `merge`."""

    def memory_of(self, target: ShardMap) -> dict[str, torch.Tensor]:
        """Return new memory, by local name, for weights of this rank in the trainer's type."""
        kinds = {getattr(torch, spec.dtype) for spec in target.tensors.values()}
        assert kinds == {self._dtype}, f"adapters are {self._dtype}, the base {kinds}"
        return {
            region.view.name: self._empty(region.view.name) for region in target.held_by(self._rank)
        }

    def _empty(self, name: str) -> torch.Tensor:
        return torch.empty_like(self._engine.weights[name], dtype=self._dtype)

    def keep(self, base: Mapping[str, torch.Tensor]) -> None:
        """Keep weights as they have arrived, by local name, where `merge` needs them."""
        for name in base.keys() & self._kept.keys():
            if name not in self._apart or base[name].dtype == self._dtype:
                keep(base[name], self._kept[name])

    def merge(self) -> None:
        """Fill the engine's weights with the base, and merge `factors` into it."""
        weights = self._engine.weights
        for name, kept in self._kept.items():
            base = self._empty(name) if name in self._apart else weights[name]
            fill(base, kept)
            for region in self._regions.get(name, ()):
                self._merge(base, region, weights)
        if any(weight.is_cuda for weight in weights.values()):
            torch.cuda.synchronize()  # the engine may compute on a stream of its own

    def _merge(
        self, base: torch.Tensor, region: Region, weights: Mapping[str, torch.Tensor]
    ) -> None:
        """Merge one region into the engine's weights, some rows at a time."""
        a, b = (
            self.factors.get(factor_name(*factor)) for factor in factors_of(region, self._lora.rank)
        )
        kept = window({region.view.name: base}, region.view, region)
        into = window(weights, region.view, region)
        step = max(MERGED_ELEMENTS // into.shape[1] // BLOCK, 1) * BLOCK
        for first in range(0, len(into), step):
            rows = slice(first, first + step)
            merged = kept[rows]
            if a is not None and b is not None:
                merged = merged.float().addmm_(b[rows].float(), a.float(), alpha=self._lora.scale)
            if into.dtype == torch.float8_e4m3fn:
                merged = self._quantised(merged, region, first, weights)
            into[rows].copy_(merged)

    def _quantised(
        self, part: torch.Tensor, region: Region, first: int, weights: Mapping[str, torch.Tensor]
    ) -> torch.Tensor:
        """Return rows of a region, from number `first` on, in FP8, and write the scales of their
        blocks."""
        part = part.to(self._engine.dtype)
        grid = scales_of(largest_of_blocks(part, (0, 0)))
        start = tuple(at // BLOCK for at in region.box.start)
        scales = self._at[scale_name(region.tensor), start]
        written = window(weights, scales.view, scales)
        written[first // BLOCK :][: len(grid)] = grid
        return quantise(part, grid, (0, 0))
