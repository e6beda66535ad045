"""The rival of the resharding benchmark: gather every parameter in full, then cut out a shard.

This is the per-tensor way from Megatron-core to vLLM: every pipeline stage broadcasts its shard of
a parameter along the pipeline, the tensor-parallel group all-gathers it, and each rank copies what
its own vLLM shard needs. It is kinder than its models: one workspace for all parameters instead of
fresh tensors, no concatenation into a Hugging Face tensor, fused parameters gathered in one call,
tied embeddings once, and no second process behind it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
import torch.distributed as dist

from verl_hpc.layout.box import View
from verl_hpc.layout.megatron import TrainLayout
from verl_hpc.layout.shard_map import Region, ShardMap

ITEM_BYTES = 4
"""All weights of this benchmark are float32."""


@dataclass(frozen=True)
class _Copy:
    """From the gathered shard of tensor-parallel index `shard` into the rank's target."""

    shard: int
    shape: tuple[int, ...]
    source: View
    target: View


@dataclass(frozen=True)
class _Parameter:
    """One Megatron parameter of one pipeline stage, and what this rank wants of it."""

    name: str
    stage: int
    num_elements: int
    """Of one shard; padding included."""
    replicated: bool
    """Every tensor-parallel rank holds it whole (norms)."""
    copies: tuple[_Copy, ...]


def local_sizes(shard_map: ShardMap, rank: int) -> dict[str, int]:
    """Elements of each of a rank's tensors."""
    sizes: dict[str, int] = {}
    for region in shard_map.held_by(rank):
        steps = zip(region.box.shape, region.view.strides, strict=True)
        end = region.view.offset + sum((n - 1) * s for n, s in steps) + 1
        sizes[region.view.name] = max(sizes.get(region.view.name, 0), end)
    return sizes


def stage_sizes(shard_map: ShardMap, layout: TrainLayout, stage: int) -> dict[str, int]:
    """Elements of one shard of each of a stage's parameters: the largest, as Megatron pads."""
    sizes: dict[str, int] = {}
    for rank in layout.grid.ranks(pp=stage):
        for name, size in local_sizes(shard_map, rank).items():
            sizes[name] = max(sizes.get(name, 0), size)
    return sizes


class AllGather:
    """Fills this rank's target from full parameters; every rank runs it together.

    Args:
        source: the training layout's map.
        target: the rollout engines' map.
        layout: the training layout.
        rank: this rank.
        point_to_point: gather with sends and receives. Gloo's all_gather stages everything in a
            second buffer; this tells that apart from what gathering itself costs.
    """

    def __init__(
        self,
        source: ShardMap,
        target: ShardMap,
        layout: TrainLayout,
        rank: int,
        point_to_point: bool = False,
    ) -> None:
        self._point_to_point = point_to_point
        self._index = layout.grid.coordinates(rank)["tp"]
        self._tensor_ranks = next(g for g in layout.grid.groups("tp") if rank in g)
        self._layout = layout
        place = layout.grid.coordinates(rank)
        self._stage, self._dp = place["pp"], place["dp"]
        self._tensor_group = _my_group(layout.grid.groups("tp"), rank)
        self._pipeline_group = _my_group(layout.grid.groups("pp"), rank)
        self._pipeline = layout.grid.ranks(tp=place["tp"], dp=place["dp"])
        self._parameters = list(_parameters(source, target, layout, self._dp, rank))
        self.received_bytes = ITEM_BYTES * sum(map(self._received, self._parameters))
        self.peak_buffer_bytes = ITEM_BYTES * max(map(self._workspace_size, self._parameters))
        """Broadcast and gathered shards of the largest parameter."""
        self._workspace = torch.empty(self.peak_buffer_bytes // ITEM_BYTES)

    def run(self, source: Mapping[str, torch.Tensor], target: Mapping[str, torch.Tensor]) -> None:
        for parameter in self._parameters:
            shards = self._gather(parameter, source)
            for copy in parameter.copies:
                read = _window(shards[copy.shard], copy.source, copy.shape)
                _window(target[copy.target.name], copy.target, copy.shape).copy_(read)

    def _gather(
        self, parameter: _Parameter, source: Mapping[str, torch.Tensor]
    ) -> list[torch.Tensor]:
        size, workspace = parameter.num_elements, self._workspace
        mine = parameter.stage == self._stage
        shard = source[parameter.name] if mine else workspace[:size]
        if self._layout.pp > 1:
            dist.broadcast(shard, self._pipeline[parameter.stage], self._pipeline_group)
        if parameter.replicated or self._layout.tp == 1:
            return [shard]
        start = 0 if mine else size
        shards = list(workspace[start : start + size * self._layout.tp].split(size))
        if self._point_to_point:
            self._swap(shards, shard)
        else:
            dist.all_gather(shards, shard, self._tensor_group)
        return shards

    def _swap(self, shards: list[torch.Tensor], shard: torch.Tensor) -> None:
        """Everyone sends its shard to everyone; its own is not even copied."""
        shards[self._index] = shard
        operations = []
        for index, peer in enumerate(self._tensor_ranks):
            if index != self._index:
                operations.append(dist.P2POp(dist.isend, shard, peer))
                operations.append(dist.P2POp(dist.irecv, shards[index], peer))
        for request in dist.batch_isend_irecv(operations) if operations else ():
            request.wait()

    def _received(self, parameter: _Parameter) -> int:
        gathered = 0 if parameter.replicated else self._layout.tp - 1
        return parameter.num_elements * (gathered + (parameter.stage != self._stage))

    def _workspace_size(self, parameter: _Parameter) -> int:
        gathered = 0 if parameter.replicated or self._layout.tp == 1 else self._layout.tp
        return parameter.num_elements * (gathered + (parameter.stage != self._stage))


def _my_group(groups: list[tuple[int, ...]], rank: int) -> dist.ProcessGroup:
    """The process group of `rank`; every rank must help to make all of them."""
    made = {ranks: dist.new_group(list(ranks)) for ranks in groups}
    return next(group for ranks, group in made.items() if rank in ranks)


def _parameters(
    source: ShardMap, target: ShardMap, layout: TrainLayout, dp: int, rank: int
) -> Iterator[_Parameter]:
    wanted: dict[str, list[Region]] = defaultdict(list)
    for region in target.held_by(rank):
        wanted[region.tensor].append(region)
    seen: set[tuple[object, ...]] = set()
    for stage in range(layout.pp):
        sizes = stage_sizes(source, layout, stage)
        shards = [
            _by_parameter(source, layout.grid.rank(tp=t, dp=dp, pp=stage)) for t in range(layout.tp)
        ]
        for name, size in sizes.items():
            regions = [shard.get(name, []) for shard in shards]
            key = tuple((r.tensor, r.box) for part in regions for r in part)
            if key in seen:  # the second place of tied embeddings
                continue
            seen.add(key)
            boxes = [[(r.tensor, r.box) for r in part] for part in regions]
            replicated = all(b == boxes[0] for b in boxes)
            used = regions[:1] if replicated else regions
            yield _Parameter(name, stage, size, replicated, tuple(_copies(used, wanted)))


def _by_parameter(shard_map: ShardMap, rank: int) -> dict[str, list[Region]]:
    grouped: dict[str, list[Region]] = defaultdict(list)
    for region in shard_map.held_by(rank):
        grouped[region.view.name].append(region)
    return grouped


def _copies(shards: list[list[Region]], wanted: Mapping[str, list[Region]]) -> Iterator[_Copy]:
    for shard, regions in enumerate(shards):
        for held in regions:
            for want in wanted[held.tensor]:
                part = held.box.intersect(want.box)
                if part is not None:
                    yield _Copy(
                        shard,
                        part.shape,
                        held.view.of(part, held.box),
                        want.view.of(part, want.box),
                    )


def _window(tensor: torch.Tensor, view: View, shape: tuple[int, ...]) -> torch.Tensor:
    return tensor.as_strided(shape, view.strides, tensor.storage_offset() + view.offset)
