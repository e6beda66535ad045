"""Batches of rows of like length, for torch's DataLoader."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch.utils.data import Sampler

from verl_hpc.data.order import permute
from verl_hpc.errors import DataError


class DynamicBatchSampler(Sampler[list[int]]):
    """A `batch_sampler`: rows are grouped by length, as many as fit into a budget once they are
    padded to the longest of them. Each row comes once an epoch.

    Args:
        dataset: rows with `input_ids`, or sequences of token ids.
        max_tokens_per_batch: rows of a batch times the longest of them.
        lengths: of all rows, where they are known; else every row is read once.
        shuffle: batches come in another order each epoch (`set_epoch`).
        seed: of the order.

    Raises:
        DataError: a row that is longer than the budget.
    """

    def __init__(
        self,
        dataset: Any,
        max_tokens_per_batch: int,
        lengths: Sequence[int] | None = None,
        shuffle: bool = False,
        seed: int = 0,
    ) -> None:
        self.lengths = list(lengths or [_length(dataset[i]) for i in range(len(dataset))])
        self._shuffle, self._seed, self._epoch = shuffle, seed, 0
        longest = max(range(len(self.lengths)), key=self.lengths.__getitem__, default=0)
        if self.lengths and self.lengths[longest] > max_tokens_per_batch:
            raise DataError(
                f"row {longest} has {self.lengths[longest]} tokens, max_tokens_per_batch = "
                f"{max_tokens_per_batch}; raise it, or leave the row out"
            )
        self._batches: list[list[int]] = []
        for index in sorted(range(len(self.lengths)), key=lambda i: (self.lengths[i], i)):
            batch = self._batches[-1] if self._batches else []
            # Ascending: this row is the longest.
            if not batch or (len(batch) + 1) * self.lengths[index] > max_tokens_per_batch:
                batch = []
                self._batches.append(batch)
            batch.append(index)

    def set_epoch(self, epoch: int) -> None:
        """Whose order comes next."""
        self._epoch = epoch

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[list[int]]:
        order = list(range(len(self._batches)))
        if self._shuffle:
            permute(order, f"{self._seed}/batches/{self._epoch}")
        for place in order:
            yield list(self._batches[place])


def _length(row: Any) -> int:
    if isinstance(row, Mapping) and "input_ids" not in row:
        raise DataError(
            f"DynamicBatchSampler: a row has {', '.join(map(str, row))} and no input_ids; give it "
            "rows of token ids, as a tokenizer makes them"
        )
    return len(row["input_ids"] if isinstance(row, Mapping) else row)
