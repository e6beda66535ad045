"""Merge adapters into the weights sent to the rollout, W + scale B A, one part of the model at a
time.

Merged weights are in separate memory, which each part reuses. The model's own weights are not
changed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

import torch

from verl_hpc.engines.protocol import TrainingEngine
from verl_hpc.layout.shard_map import ITEM_BYTES, ShardMap, dtype_name
from verl_hpc.planner.memory.role import MERGED_BYTES


def parts_of(shard_map: ShardMap, dtype: str, limit: int = MERGED_BYTES) -> list[list[str]]:
    """Split logical tensors into parts whose decoder layers take at most `limit` bytes on any rank.

    A part has neighbouring layers of every stage, so that all stages send at the same time; the
    first part also has the tensors outside layers. With 2 stages of 4 layers and room for two: 0,
    1, 4, 5, then 2, 3, 6, 7.
    """
    places: dict[str, set[str]] = {}
    sizes: dict[tuple[str, object], int] = {}
    rest = []
    for region in shard_map.regions:
        place = _place(region.view.name)
        if place is None:
            rest.append(region.tensor)
            continue
        places.setdefault(place, set()).add(region.tensor)
        for holder in region.holders:
            key = place, holder
            num_bytes = region.box.num_elements * ITEM_BYTES[dtype]
            sizes[key] = sizes.get(key, 0) + num_bytes
    # A layer's size is that of its largest share on any rank; then fill parts greedily.
    largest = {p: max(n for (q, _), n in sizes.items() if q == p) for p in places}
    parts: list[list[str]] = [list(dict.fromkeys(rest))]
    filled = 0
    for place, names in places.items():
        if filled and filled + largest[place] > limit:
            parts.append([])
            filled = 0
        parts[-1] += sorted(names)
        filled += largest[place]
    return parts


def _place(parameter: str) -> str | None:
    """Return chunk and number of the decoder layer in a parameter's local name, or None."""
    chunk, _, rest = parameter.partition(".decoder.layers.")
    return f"{chunk}.{rest.partition('.')[0]}" if rest else None


class MergedWeights:
    """One rank's weights to send, part by part.

    Args:
        engine: this rank's engine, or None.
        maps: shard map of every part.
        rank: this rank.
        dtype: element type of merged weights, which is sent.
    """

    def __init__(
        self, engine: TrainingEngine | None, maps: Sequence[ShardMap], rank: int, dtype: torch.dtype
    ) -> None:
        self._engine = engine
        adapted = engine.adapted if engine is not None else {}
        self._names = [
            list(dict.fromkeys(r.view.name for r in m.held_by(rank) if r.view.name in adapted))
            for m in maps
        ]
        sizes = [[prod(adapted[name].shape) for name in names] for names in self._names]
        device = next((weight.device for weight in adapted.values()), None)
        memory = torch.empty(max(map(sum, sizes), default=0), dtype=dtype, device=device)
        self._merged: list[Mapping[str, torch.Tensor]] = [
            {
                name: piece.view(adapted[name].shape)
                for name, piece in zip(names, memory[: sum(size)].split(size), strict=True)
            }
            for names, size in zip(self._names, sizes, strict=True)
        ]
        self.num_bytes = memory.numel() * ITEM_BYTES[dtype_name(dtype)]

    def of(self, part: int) -> Mapping[str, torch.Tensor]:
        """Merge one part and return the weights by local name; this overwrites the previous
        part."""
        if self._engine is None:
            return {}
        for name, memory in self._merged[part].items():
            self._engine.merge(name, memory)
        return {**self._engine.weights, **self._merged[part]}
