"""Choose the rows of each step: the same on all ranks without communication, and after restarts."""

from __future__ import annotations

from array import array
from collections.abc import MutableSequence, Sequence
from dataclasses import dataclass
from random import Random

from verl_hpc.errors import DataError


@dataclass(frozen=True)
class Position:
    """The next row to use: `offset` rows into the order of `epoch`."""

    epoch: int = 0
    offset: int = 0


class Order:
    """An endless stream of row numbers: one permutation of all rows after another.

    With seed 0, 5 rows and steps of 3, the second step ends epoch 0 and begins epoch 1::

        step    0 0 0 1 1 1 2 2 2 3 3 3
        epoch   0 0 0 0 0 1 1 1 1 1 2 2
        row     0 3 4 1 2 1 3 0 2 4 1 0

    A permutation follows from the seed and the epoch alone (`permute`).
    """

    def __init__(self, num_rows: int, seed: int, shuffle: bool) -> None:
        self._num_rows = num_rows
        self._seed = seed
        self._shuffle = shuffle
        self._rows = array("q", bytes(8 * num_rows if shuffle else 0))
        self._epoch = -1

    def take(self, position: Position, count: int) -> tuple[list[int], Position]:
        """Return the next `count` row numbers from `position`, and the position after them.

        Raises:
            DataError: `position` lies outside the data set.
        """
        size = self._num_rows
        if not 0 <= position.offset < size:
            raise DataError(
                f"the run is at row {position.offset} of epoch {position.epoch}, and the data "
                f"set has {size} rows; resume with the data set that the run started with"
            )
        start = position.epoch * size + position.offset
        stop = start + count
        taken: list[int] = []
        while start < stop:
            epoch, offset = divmod(start, size)
            rows = self._rows_of(epoch)[offset : offset + stop - start]
            taken += rows
            start += len(rows)
        return taken, Position(*divmod(stop, size))

    def _rows_of(self, epoch: int) -> Sequence[int]:
        if not self._shuffle:
            return range(self._num_rows)
        if epoch != self._epoch:
            permute(self._rows, f"{self._seed}/{epoch}")
            self._epoch = epoch
        return self._rows


def permute(numbers: MutableSequence[int], seed: str) -> None:
    """Fill a sequence with a permutation of 0, 1, ..., whatever it held before.

    It follows from the length and the seed alone: a Fisher-Yates shuffle over
    `random.Random(str).random()`, whose seeding and sequence Python promises to keep;
    `random.shuffle` has no such promise.
    """
    random = Random(seed)  # noqa: S311
    for i in range(len(numbers)):
        j = int(random.random() * (i + 1))
        numbers[i] = numbers[j]
        numbers[j] = i
