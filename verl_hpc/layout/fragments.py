"""Intersections of two shard maps: the boxes that are whole on both sides."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate, pairwise, product

from verl_hpc.errors import LayoutError
from verl_hpc.layout.box import Box, View
from verl_hpc.layout.shard_map import ITEM_BYTES, Holder, Region, ShardMap


@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """Regions that hold a common box of one tensor, each at its own view."""

    regions: tuple[Region, ...]
    holders: tuple[Holder, ...]

    def views(self, holder: Holder, part: Box) -> tuple[View, ...]:
        """Views at which `holder` keeps `part` of the box: mostly one, two where it holds
        copies."""
        return tuple(r.view.of(part, r.box) for r in self.regions if holder in r.holders)


@dataclass(frozen=True, slots=True, eq=False)
class Fragment:
    """A box that lies inside one source piece and inside one target piece.

    `num_bytes` is its size on the wire, in the target's element type.
    """

    tensor: str
    box: Box
    source: Piece
    target: Piece
    num_bytes: int

    @property
    def order(self) -> tuple[int, ...]:
        """Dimensions as elements travel: in the order of the source's memory, where a tensor may
        lie transposed."""
        return self.source.regions[0].view.order

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the box, its dimensions in this order."""
        return tuple(self.box.shape[dim] for dim in self.order)


Cut = tuple[tuple[int, ...], int, Box]
"""(indices of the source boxes, index of the target box, their common part)."""


def _cut(sources: Sequence[Box], targets: Sequence[Box]) -> Iterator[Cut]:
    """Cover every target box by parts of source boxes, no element twice."""
    if sources and not sources[0].start:  # of a number without dimensions there is one box
        yield from (((0,), t, target) for t, target in enumerate(targets))
        return
    disjoint = _disjoint(sources)
    cells = sorted(sources if disjoint else _refine(sources))
    if disjoint:
        containing: list[tuple[int, ...]] = [
            (i,) for i in sorted(range(len(sources)), key=sources.__getitem__)
        ]
    else:
        containing = [tuple(i for i, b in enumerate(sources) if b.contains(c)) for c in cells]
    starts = [cell.start[0] for cell in cells]
    ends = list(accumulate((cell.stop[0] for cell in cells), max))
    for t, target in enumerate(targets):
        covered = 0
        # Only cells between these two can meet the target along the first dimension.
        first = bisect_right(ends, target.start[0])
        last = bisect_left(starts, target.stop[0])
        for index in range(first, last):
            part = cells[index].intersect(target)
            if part is not None:
                covered += part.num_elements
                yield containing[index], t, part
        if covered != target.num_elements:
            raise LayoutError(f"elements {target.start}..{target.stop} have no source")


def _disjoint(boxes: Sequence[Box]) -> bool:
    ordered = sorted(boxes)
    for i, box in enumerate(ordered):
        for other in ordered[i + 1 :]:
            if other.start[0] >= box.stop[0]:
                break
            if box.intersect(other) is not None:
                return False
    return True


def _refine(boxes: Sequence[Box]) -> list[Box]:
    """Cut overlapping boxes along all their edges; keep each covered cell once."""
    num_dims = len(boxes[0].start)
    edges = [sorted({e for b in boxes for e in (b.start[d], b.stop[d])}) for d in range(num_dims)]
    spans = [list(pairwise(e)) for e in edges]
    cells = [Box(tuple(s[0] for s in cell), tuple(s[1] for s in cell)) for cell in product(*spans)]
    return [cell for cell in cells if any(box.contains(cell) for box in boxes)]


class _Pieces:
    """Regions grouped by box; equal tuples of holders become one object, to group by."""

    def __init__(self) -> None:
        self._interned: dict[tuple[Holder, ...], tuple[Holder, ...]] = {}

    def of(self, shard_map: ShardMap) -> Mapping[str, tuple[Piece, ...]]:
        pieces = {}
        for tensor, regions in shard_map.by_tensor.items():
            by_box: dict[Box, list[Region]] = {}
            for region in regions:
                by_box.setdefault(region.box, []).append(region)
            pieces[tensor] = tuple(map(self._piece, by_box.values()))
        return pieces

    def merge(self, members: Sequence[Piece]) -> Piece:
        """One piece with everyone who holds the common part of several."""
        return self._piece([region for piece in members for region in piece.regions])

    def _piece(self, regions: Sequence[Region]) -> Piece:
        holders = regions[0].holders
        if len(regions) > 1:
            merged = {h for region in regions for h in region.holders}
            holders = tuple(sorted(merged, key=lambda h: (isinstance(h, str), h)))
        return Piece(tuple(regions), self._interned.setdefault(holders, holders))


def fragments(source: ShardMap, target: ShardMap, max_bytes: int) -> Iterator[Fragment]:
    """All fragments of a transfer, none larger than `max_bytes`.

    For q rows held by 4 training ranks and needed by 2 rollout ranks (8 rows)::

        source  rank 0: 0-2   rank 1: 2-4   rank 2: 4-6   rank 3: 6-8
        target  rank 0: 0-4                 rank 1: 4-8
        yields  0-2 (0 -> 0), 2-4 (1 -> 0), 4-6 (2 -> 1), 6-8 (3 -> 1)

    Raises:
        LayoutError: the target needs a tensor, or elements, that the source does not have, or
            the two disagree on a shape.
    """
    grouping = _Pieces()
    # Layers of a model are cut alike.
    cut = cache(lambda sources, targets: list(_cut(sources, targets)))
    source_pieces = grouping.of(source)
    for tensor, wanted in grouping.of(target).items():
        _check_same_tensor(tensor, source, target)
        held = source_pieces[tensor]
        item = ITEM_BYTES[target.tensors[tensor].dtype]
        try:
            cuts = cut(tuple(map(_box, held)), tuple(map(_box, wanted)))
        except LayoutError as error:
            raise LayoutError(f"{tensor}: {error}; is the source complete?") from None
        for s, t, box in cuts:
            piece = held[s[0]] if len(s) == 1 else grouping.merge([held[i] for i in s])
            for part in _at_most(box, max_bytes // item):
                yield Fragment(tensor, part, piece, wanted[t], part.num_elements * item)


def _box(piece: Piece) -> Box:
    return piece.regions[0].box


def _check_same_tensor(tensor: str, source: ShardMap, target: ShardMap) -> None:
    if tensor not in source.tensors:
        raise LayoutError(f"{tensor}: needed by the target, not in the source")
    shapes = source.tensors[tensor].shape, target.tensors[tensor].shape
    if shapes[0] != shapes[1]:
        raise LayoutError(f"{tensor}: shape {shapes[0]} in the source, {shapes[1]} in the target")


def _at_most(box: Box, num_elements: int) -> Iterator[Box]:
    if box.num_elements <= max(num_elements, 1):
        yield box
        return
    for half in box.halve():
        yield from _at_most(half, num_elements)
