"""Batches of rows of like length, for torch's DataLoader."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from torch.utils.data import Sampler

from verl_hpc.api.prompts import plain
from verl_hpc.config.arguments import checked, having
from verl_hpc.config.explain import shown
from verl_hpc.data.order import permute
from verl_hpc.errors import DataError
from verl_hpc.section import Positive

Rows = Annotated[
    Any,
    having("rows by number and len(); give a list of a stream's rows", "__getitem__", "__len__"),
]


class DynamicBatchSampler(Sampler[list[int]]):
    """A `batch_sampler`: rows are grouped by length, as many as fit into a budget once they are
    padded to the longest of them. Each row comes once an epoch.

    Args:
        dataset: rows with `input_ids`, or sequences of token ids; each is read once to know its
            length.
        max_tokens_per_batch: rows of a batch times the longest of them.
        shuffle: batches come in another order each epoch (`set_epoch`).
        seed: seed of the order.

    Raises:
        DataError: a row that is longer than the budget, or has no token ids.
    """

    @checked
    def __init__(
        self, dataset: Rows, max_tokens_per_batch: Positive, shuffle: bool = False, seed: int = 0
    ) -> None:
        self.lengths = [_length(dataset[i], i) for i in range(len(dataset))]
        self._shuffle, self._seed, self._epoch = shuffle, seed, 0
        self._batches: list[list[int]] = []
        batch: list[int] = []
        for index in sorted(range(len(self.lengths)), key=lambda i: (self.lengths[i], i)):
            length = self.lengths[index]
            if length > max_tokens_per_batch:
                raise DataError(
                    f"row {index} has {length} tokens, max_tokens_per_batch = "
                    f"{max_tokens_per_batch}; raise it, or leave the row out"
                )
            # Ascending: this row is the longest.
            if not self._batches or (len(batch) + 1) * length > max_tokens_per_batch:
                batch = []
                self._batches.append(batch)
            batch.append(index)

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch whose order comes next."""
        self._epoch = epoch

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[list[int]]:
        order = list(range(len(self._batches)))
        if self._shuffle:
            permute(order, f"{self._seed}/batches/{self._epoch}")
        for place in order:
            yield list(self._batches[place])


def _length(row: Any, index: int) -> int:
    """Return the tokens of a row of (L,) ids, or of (1, L) as tokenizers give with
    return_tensors."""
    if isinstance(row, Mapping) and "input_ids" not in row:
        raise DataError(
            f"DynamicBatchSampler: a row has {', '.join(map(str, row))} and no input_ids; give it "
            "rows of token ids, as a tokenizer makes them"
        )
    tokens = plain(row["input_ids"] if isinstance(row, Mapping) else row)
    if isinstance(tokens, list) and len(tokens) == 1 and isinstance(tokens[0], list):
        tokens = tokens[0]
    if not isinstance(tokens, list) or any(isinstance(token, list) for token in tokens):
        raise DataError(
            f"DynamicBatchSampler: row {index} is {shown(tokens)}, not a sequence of token ids; "
            "tokenise it"
        )
    return len(tokens)
