"""Assignment of regions to writers: every byte is written once, and no rank writes for all."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from verl_hpc.layout.box import Box
from verl_hpc.layout.grid import RankGrid
from verl_hpc.layout.shard_map import ITEM_BYTES, Region, ShardMap


def assign_writers(shard_map: ShardMap) -> dict[int, list[Region]]:
    """Regions that each rank writes: every distinct box once, by its least loaded holder.

    tp=2, dp=2 on 4 ranks: of the boxes that ranks 0 and 2 hold, each writes about half.
    """
    written: set[tuple[str, Box]] = set()
    load: dict[int, int] = defaultdict(int)
    assigned: dict[int, list[Region]] = defaultdict(list)
    for region in shard_map.regions:
        if (region.tensor, region.box) in written:
            continue
        written.add((region.tensor, region.box))
        writer = min((int(h) for h in region.holders), key=lambda rank: (load[rank], rank))
        item = ITEM_BYTES[shard_map.tensors[region.tensor].dtype]
        load[writer] += region.box.num_elements * item
        assigned[writer].append(region)
    return assigned


def primary_regions(
    shard_map: ShardMap, grid: RankGrid, rank: int, replicas: str = "dp"
) -> Sequence[Region]:
    """Regions of `rank` that no lower rank of its model-parallel group keeps.

    A data-parallel group shards the optimizer state of what its model-parallel place holds. Of a
    box held by several places (norms, tied embeddings) the lowest keeps it. In tp=2, dp=2 on
    4 ranks: of the norms, ranks 0 and 2; of everything else, each rank.

    Args:
        replicas: the grid's axis along which the state is sharded.
    """
    stands: dict[tuple[str, Box], Region] = {}
    for region in shard_map.regions:
        stands.setdefault((region.tensor, region.box), region)
    replica = grid.coordinates(rank)[replicas]
    return [
        region
        for region in shard_map.held_by(rank)
        if stands[region.tensor, region.box] is region
        and rank == min(h for h in region.holders if grid.coordinates(int(h))[replicas] == replica)
    ]
