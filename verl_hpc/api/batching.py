"""Batches of rows of like length, for torch's DataLoader."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch.utils.data import Sampler

from verl_hpc.config.arguments import checked
from verl_hpc.config.explain import shown
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
        DataError: a row that is longer than the budget or has no token ids, lengths that are no
            numbers of tokens or not one for each row, or a budget below one token.
    """

    @checked
    def __init__(
        self,
        dataset: Any,
        max_tokens_per_batch: int,
        lengths: Any = None,
        shuffle: bool = False,
        seed: int = 0,
    ) -> None:
        if max_tokens_per_batch < 1:
            raise DataError(
                f"max_tokens_per_batch = {max_tokens_per_batch}; expected at least 1 token"
            )
        rows = _rows_of(dataset)
        self.lengths = (
            [_length(dataset[i], i) for i in range(rows)] if lengths is None else _given(lengths)
        )
        if len(self.lengths) != rows:
            raise DataError(
                f"lengths has {len(self.lengths)} numbers, and the dataset has {rows} rows"
            )
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


def _rows_of(dataset: Any) -> int:
    if not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
        raise DataError(
            f"DynamicBatchSampler: dataset is {type(dataset).__name__}, which has no len() and "
            "rows by number; give a list of a stream's rows"
        )
    return len(dataset)


def _given(lengths: Any) -> list[int]:
    """Raises: DataError: they are no numbers of tokens."""
    found: list[int] | None
    try:
        found = [operator.index(length) for length in lengths]
    except TypeError:
        found = None
    if found is None or any(length < 0 for length in found):
        raise DataError(
            f"DynamicBatchSampler: lengths = {shown(lengths)}; expected a whole number of tokens "
            "for each row, at least 0, or None, which reads the rows"
        )
    return found


def _length(row: Any, index: int) -> int:
    """Tokens of a row: of (L,) ids, or of (1, L) as tokenizers give with return_tensors."""
    if isinstance(row, Mapping) and "input_ids" not in row:
        raise DataError(
            f"DynamicBatchSampler: a row has {', '.join(map(str, row))} and no input_ids; give it "
            "rows of token ids, as a tokenizer makes them"
        )
    ids = row["input_ids"] if isinstance(row, Mapping) else row
    shape = getattr(ids, "shape", None)
    if shape is None:
        is_row = _is_flat(ids)
    elif len(shape) == 2 and shape[0] == 1:
        return int(shape[1])
    else:
        is_row = len(shape) == 1
    if is_row:
        return len(ids)
    raise DataError(
        f"DynamicBatchSampler: row {index} is {type(ids).__name__}"
        f"{'' if shape is None else f' of shape {tuple(shape)}'}, not a sequence of token ids; "
        "tokenise it, or give lengths"
    )


def _is_flat(ids: Any) -> bool:
    if isinstance(ids, str) or not isinstance(ids, Sequence):
        return False
    return not ids or not hasattr(ids[0], "__len__")
