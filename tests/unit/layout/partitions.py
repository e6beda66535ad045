"""Random layouts of small tensors, with no model behind them."""

from itertools import pairwise

from hypothesis import strategies as st

from verl_hpc.layout.box import Box, View, row_major_strides
from verl_hpc.layout.shard_map import Region, ShardMap, TensorSpec


@st.composite
def cuts(draw, length):
    """Edges of a dimension: 0, some in between, `length`."""
    inner = draw(st.sets(st.integers(1, length - 1), max_size=3)) if length > 1 else set()
    return [0, *sorted(inner), length]


@st.composite
def partitions(draw, shape):
    """Disjoint boxes that cover a tensor: a grid, as every layout's."""
    edges = [draw(cuts(n)) for n in shape]
    boxes = [Box((), ())]
    for dim in edges:
        spans = list(pairwise(dim))
        boxes = [Box((*b.start, lo), (*b.stop, hi)) for b in boxes for lo, hi in spans]
    return boxes


@st.composite
def shard_maps(draw, tensors, ranks):
    """Each tensor cut anew, each box held by some of `ranks`; a rank's boxes lie apart."""
    regions = []
    for name, spec in tensors.items():
        for i, box in enumerate(draw(partitions(spec.shape))):
            holders = draw(st.sets(st.sampled_from(ranks), min_size=1))
            view = View(f"{name}.{i}", draw(st.integers(0, 2)), row_major_strides(box.shape))
            regions.append(Region(name, box, tuple(sorted(holders)), view))
    return ShardMap(tensors, regions)


@st.composite
def pairs(draw, num_ranks=6):
    """(source, target) over the same tensors and ranks."""
    tensors = {
        f"t{i}": TensorSpec(draw(st.sampled_from([(7,), (40,), (5, 6), (3, 2, 4)])), "float32")
        for i in range(draw(st.integers(1, 3)))
    }
    ranks = range(num_ranks)
    return draw(shard_maps(tensors, ranks)), draw(shard_maps(tensors, ranks))


def relabelled(shard_map, new_rank):
    """The same layout with rank r called new_rank[r]."""
    return ShardMap(
        shard_map.tensors,
        [
            Region(r.tensor, r.box, tuple(sorted(new_rank[h] for h in r.holders)), r.view)
            for r in shard_map.regions
        ],
    )
