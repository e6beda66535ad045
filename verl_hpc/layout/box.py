"""Half-open hyper-rectangles, and the part of a holder's memory where one lies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod


@dataclass(frozen=True, slots=True, order=True)
class Box:
    """A half-open hyper-rectangle `[start, stop)` in the index space of one logical tensor."""

    start: tuple[int, ...]
    stop: tuple[int, ...]

    @classmethod
    def whole(cls, shape: Sequence[int]) -> Box:
        """The box that covers a tensor of `shape`."""
        return cls((0,) * len(shape), tuple(shape))

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(b - a for a, b in zip(self.start, self.stop, strict=True))

    @property
    def num_elements(self) -> int:
        return prod(self.shape)

    @property
    def slices(self) -> tuple[slice, ...]:
        return tuple(map(slice, self.start, self.stop))

    def intersect(self, other: Box) -> Box | None:
        """The common part, or None where the two do not meet."""
        start = tuple(map(max, self.start, other.start))
        stop = tuple(map(min, self.stop, other.stop))
        for a, b in zip(start, stop, strict=True):
            if a >= b:
                return None
        return Box(start, stop)

    def contains(self, other: Box) -> bool:
        return all(map(int.__le__, self.start, other.start)) and all(
            map(int.__ge__, self.stop, other.stop)
        )

    def relative_to(self, origin: Box) -> Box:
        """This box in coordinates that start at `origin.start`."""
        return Box(
            tuple(map(int.__sub__, self.start, origin.start)),
            tuple(map(int.__sub__, self.stop, origin.start)),
        )

    def shifted(self, by: Sequence[int]) -> Box:
        """This box moved by `by`; the inverse of `relative_to`."""
        return Box(tuple(map(int.__add__, self.start, by)), tuple(map(int.__add__, self.stop, by)))

    def halve(self) -> tuple[Box, Box]:
        """Cut in two across the outermost dimension that is longer than one."""
        dim = next(d for d, n in enumerate(self.shape) if n > 1)
        middle = (self.start[dim] + self.stop[dim]) // 2
        low = Box(self.start, (*self.stop[:dim], middle, *self.stop[dim + 1 :]))
        high = Box((*self.start[:dim], middle, *self.start[dim + 1 :]), self.stop)
        return low, high


def row_major_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Element strides of a contiguous tensor of `shape`: (4, 3, 2) gives (6, 2, 1)."""
    strides = [1]
    for n in reversed(shape[1:]):
        strides.append(strides[-1] * n)
    return tuple(reversed(strides)) if shape else ()


@dataclass(frozen=True, slots=True)
class View:
    """Place of a box in a holder's tensor `name`, in elements.

    Element `(i, j)` of the box, counted from its start, is at `offset + i*strides[0] +
    j*strides[1]` of the tensor's flat memory. One form describes a slice of a fused parameter,
    a shard of an optimizer's flat buffer and an expert of a stacked weight.
    """

    name: str
    offset: int
    strides: tuple[int, ...]

    @property
    def order(self) -> tuple[int, ...]:
        """Dimensions of the box from the slowest in memory to the fastest: (0, 2, 1) where
        matrices lie transposed."""
        return tuple(sorted(range(len(self.strides)), key=lambda dim: -self.strides[dim]))

    def of(self, part: Box, box: Box) -> View:
        """The view of `part`, where this one is the view of `box` and `box` contains `part`."""
        steps = ((p - b) * s for p, b, s in zip(part.start, box.start, self.strides, strict=True))
        return View(self.name, self.offset + sum(steps), self.strides)


def flat_range_boxes(shape: Sequence[int], start: int, stop: int) -> list[Box]:
    """Cut the flat range `[start, stop)` of a contiguous tensor of `shape` into boxes.

    The boxes come in memory order, each contiguous in memory: a piece of the first row, whole
    rows, a piece of the last row. For shape (4, 5) and the range [3, 17)::

        . . . A A
        B B B B B        A = [0:1, 3:5]   B = [1:3, 0:5]   C = [3:4, 0:2]
        B B B B B
        C C . . .

    A data-parallel rank of a distributed optimizer owns such a range of each parameter.
    """
    if start >= stop:
        return []
    if len(shape) == 1:
        return [Box((start,), (stop,))]
    row = prod(shape[1:])
    first, head = divmod(start, row)
    last, tail = divmod(stop, row)
    if first == last:
        return _within_row(shape, first, head, tail)
    boxes: list[Box] = []
    if head:
        boxes += _within_row(shape, first, head, row)
        first += 1
    if first < last:
        boxes.append(Box((first,) + (0,) * (len(shape) - 1), (last, *shape[1:])))
    if tail:
        boxes += _within_row(shape, last, 0, tail)
    return boxes


def _within_row(shape: Sequence[int], index: int, start: int, stop: int) -> list[Box]:
    return [
        Box((index, *b.start), (index + 1, *b.stop))
        for b in flat_range_boxes(shape[1:], start, stop)
    ]
