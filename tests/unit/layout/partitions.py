"""Random layouts of small tensors, with no model behind them."""

from dataclasses import replace

from hypothesis import strategies as st

from verl_hpc.layout.box import Box, View, row_major_strides
from verl_hpc.layout.shard_map import Region, ShardMap, TensorSpec


@st.composite
def partitions(draw, shape):
    """Disjoint boxes that cover a tensor: cut in two, again and again, anywhere."""
    boxes = [Box.whole(shape)]
    for _ in range(draw(st.integers(0, 5))):
        box = boxes.pop(draw(st.integers(0, len(boxes) - 1)))
        dim = draw(st.integers(0, len(shape) - 1))
        if box.shape[dim] == 1:
            boxes.append(box)
            continue
        edge = draw(st.integers(box.start[dim] + 1, box.stop[dim] - 1))
        boxes.append(Box(box.start, (*box.stop[:dim], edge, *box.stop[dim + 1 :])))
        boxes.append(Box((*box.start[:dim], edge, *box.start[dim + 1 :]), box.stop))
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
    """The layout with rank r called new_rank[r]."""
    names = [tuple(sorted(new_rank[h] for h in r.holders)) for r in shard_map.regions]
    regions = [replace(r, holders=n) for r, n in zip(shard_map.regions, names, strict=True)]
    return ShardMap(shard_map.tensors, regions)
