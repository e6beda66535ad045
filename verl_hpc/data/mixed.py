"""Several data sets in one batch: their rows, and the order that gives each its share of them."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate, chain, pairwise

from verl_hpc.data.check import WithoutRows
from verl_hpc.data.order import Order, Position, permute
from verl_hpc.data.problem import Problem, Source
from verl_hpc.errors import DataError


class MixedSource:
    """The rows of several data sets, one set after another.

    Args:
        sets: the data sets by name.
        weights: share of each in what is drawn; they sum to 1.
    """

    def __init__(self, sets: Mapping[str, Source], weights: Mapping[str, float]) -> None:
        self.sets, self.weights = sets, weights
        self.ends = list(accumulate(map(len, sets.values())))
        self._names = list(sets)

    def __len__(self) -> int:
        return self.ends[-1]

    def set_of(self, row: int) -> str:
        """Name the data set of a row."""
        return self._names[bisect_right(self.ends, row)]

    def __getitem__(self, index: int) -> Problem:
        if not 0 <= index < len(self):
            raise IndexError(index)
        rows = self.sets[self.set_of(index)]
        first = self.ends[bisect_right(self.ends, index)] - len(rows)
        return replace(rows[index - first], index=index)

    def scan(self) -> Iterator[Problem | DataError]:
        """Yield what `Source.scan` does."""
        return chain.from_iterable(rows.scan() for rows in self.sets.values())


def without_rows(source: Source, dropped: array[int]) -> Source:
    """Return a data set without some of its rows.

    Args:
        dropped: their numbers, ascending.

    Raises:
        DataError: a set of a mix is left without rows.
    """
    if not isinstance(source, MixedSource):
        return WithoutRows(source, dropped)
    left: dict[str, Source] = {}
    for (name, rows), (first, end) in zip(
        source.sets.items(), pairwise((0, *source.ends)), strict=True
    ):
        left[name] = WithoutRows(
            rows, array("q", (row - first for row in dropped if first <= row < end))
        )
        if not len(left[name]):
            raise DataError(
                f"data.overlap = drop leaves no row of the set {name}; give it other files, or "
                "leave it out"
            )
    return MixedSource(left, source.weights)


class MixedOrder(Order):
    """An endless stream of row numbers in which every set has its share.

    An epoch has as many rows as all sets together, and of each set its share of them, in places
    that follow from the seed and the epoch. Within a set rows come in its own `Order`, which goes
    on from epoch to epoch, so that no row is used again before all others of its set.

    Raises:
        DataError: a share of the rows is less than one row.
    """

    def __init__(self, source: MixedSource, seed: int, shuffle: bool) -> None:
        super().__init__(len(source), seed, shuffle=False)
        shares = [source.weights[name] for name in source.sets]
        # Sums of shares are rounded, so that all parts together have all rows.
        bounds = [round(total * len(source)) for total in accumulate(shares)]
        self._parts = list(pairwise((0, *bounds[:-1], len(source))))
        self._firsts = (0, *source.ends)
        self._orders = [Order(len(rows), seed, shuffle) for rows in source.sets.values()]
        self._sizes = [len(rows) for rows in source.sets.values()]
        for name, (first, end) in zip(source.sets, self._parts, strict=True):
            if first >= end:
                raise DataError(
                    f"the set {name} has a weight of {source.weights[name]:g}, which is no row of "
                    f"the {len(source)} of an epoch; raise the weight, or leave the set out"
                )

    def _rows_of(self, epoch: int) -> Sequence[int]:
        if epoch != self._epoch:
            places = array("q", bytes(8 * self._num_rows))
            permute(places, f"{self._seed}/sets/{epoch}")
            self._rows, self._epoch = self._mixed(epoch, places), epoch
        return self._rows

    def _mixed(self, epoch: int, places: Sequence[int]) -> array[int]:
        ends = [end for _, end in self._parts]
        streams = []
        for number, (first, end) in enumerate(self._parts):
            start = epoch * (end - first)
            position = Position(*divmod(start, self._sizes[number]))
            rows, _ = self._orders[number].take(position, end - first)
            streams.append(iter(rows))
        numbers = (bisect_right(ends, place) for place in places)
        return array("q", (self._firsts[n] + next(streams[n]) for n in numbers))


def order_of(source: Source, seed: int, shuffle: bool) -> Order:
    """Return the order in which a run draws the rows of a data set.

    Raises:
        DataError: see `MixedOrder`.
    """
    if isinstance(source, MixedSource):
        return MixedOrder(source, seed, shuffle)
    return Order(len(source), seed, shuffle)
