"""Grids of ranks with named axes, and the groups cut from them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import product
from math import prod

from verl_hpc.errors import LayoutError


@dataclass(frozen=True)
class RankGrid:
    """Ranks laid out along named axes, the first axis varying fastest.

    The order can be read off: `RankGrid.of(tp=2, dp=2, pp=2)` is, for 8 ranks::

                   dp=0     dp=1
                 tp=0 tp=1 tp=0 tp=1        tp groups  [0,1] [2,3] [4,5] [6,7]
        pp=0       0    1    2    3         dp groups  [0,2] [1,3] [4,6] [5,7]
        pp=1       4    5    6    7         pp groups  [0,4] [1,5] [2,6] [3,7]

    which is Megatron-core's default order "tp-cp-ep-dp-pp".
    """

    axes: tuple[str, ...]
    sizes: tuple[int, ...]
    first_rank: int = 0

    @classmethod
    def of(cls, first_rank: int = 0, **sizes: int) -> RankGrid:
        """A grid whose axes are the keyword names, fastest first.

        Raises:
            LayoutError: a size is below 1.
        """
        for axis, size in sizes.items():
            if size < 1:
                raise LayoutError(f"{axis} = {size}: a parallel size is a whole number from 1 up")
        return cls(tuple(sizes), tuple(sizes.values()), first_rank)

    @cached_property
    def size(self) -> int:
        return prod(self.sizes)

    @cached_property
    def _strides(self) -> dict[str, int]:
        return {axis: prod(self.sizes[:i]) for i, axis in enumerate(self.axes)}

    def axis_size(self, axis: str) -> int:
        return self.sizes[self.axes.index(axis)]

    def rank(self, **coordinates: int) -> int:
        """The rank at `coordinates`; axes not named are at 0."""
        return self.first_rank + sum(self._strides[a] * i for a, i in coordinates.items())

    def coordinates(self, rank: int) -> dict[str, int]:
        """Coordinates of `rank`, one index an axis."""
        assert self.first_rank <= rank < self.first_rank + self.size, (rank, self)
        index = rank - self.first_rank
        return {
            a: index // self._strides[a] % n for a, n in zip(self.axes, self.sizes, strict=True)
        }

    def ranks(self, **fixed: int) -> tuple[int, ...]:
        """Ascending ranks whose coordinates on the `fixed` axes are as given.

        In the 8-rank grid above, `ranks(tp=1, pp=0)` is (1, 3).
        """
        choices = [
            (fixed[a],) if a in fixed else range(n)
            for a, n in zip(reversed(self.axes), reversed(self.sizes), strict=True)
        ]
        steps = [self._strides[a] for a in reversed(self.axes)]
        return tuple(
            self.first_rank + sum(map(int.__mul__, steps, index)) for index in product(*choices)
        )

    def groups(self, *axes: str) -> list[tuple[int, ...]]:
        """The groups that vary along `axes` and agree on all others, ordered by first rank.

        In the 8-rank grid above, `groups("tp", "pp")` is [(0, 1, 4, 5), (2, 3, 6, 7)].
        """
        others = [a for a in reversed(self.axes) if a not in axes]
        choices = [range(self.axis_size(a)) for a in others]
        return [self.ranks(**dict(zip(others, index, strict=True))) for index in product(*choices)]


def check_divides(axis: str, size: int, number: int, what: str) -> None:
    """Raises: LayoutError: a parallel size does not divide a number of the model."""
    if number % size:
        raise LayoutError(
            f"{axis} = {size} does not divide the model's {number} {what}; choose a divisor of "
            f"{number}"
        )


def check_key_value_heads(axis: str, size: int, heads: int) -> None:
    """Raises: LayoutError: heads can neither be divided among ranks nor replicated on them."""
    if max(heads, size) % min(heads, size):
        raise LayoutError(
            f"{axis} = {size} and the model's {heads} key/value heads: one must divide the other"
        )


def nodes_of(num_ranks: int, ranks_per_node: int) -> tuple[int, ...]:
    """Node index of each rank where nodes are filled one after another.

    For 8 ranks, 4 a node: (0, 0, 0, 0, 1, 1, 1, 1).
    """
    return tuple(rank // ranks_per_node for rank in range(num_ranks))
