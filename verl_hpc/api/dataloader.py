"""Rows for torch's DataLoader in batches of like length, and rows of tasks mixed by weight."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

from torch.utils.data import Sampler

from verl_hpc.api.data import DataProvider
from verl_hpc.api.prompts import plain
from verl_hpc.config.arguments import checked, having
from verl_hpc.config.explain import near_or_all, shown
from verl_hpc.data.check import WithoutRows
from verl_hpc.data.mixed import MixedOrder, MixedSource
from verl_hpc.data.order import permute
from verl_hpc.data.problem import Problem
from verl_hpc.errors import DataError
from verl_hpc.section import NonNegativeFinite, Positive

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


class TaskDataLoader(DataProvider):
    """Endless batches of the rows of several tasks: see `get_dataloader`."""

    source: MixedSource

    def __init__(
        self,
        dataset_path: str | Path,
        task_weights: Mapping[str, float],
        batch_size: int,
        seed: int,
    ) -> None:
        total = sum(task_weights.values())
        if total <= 0:
            raise DataError(f"task_weights = {dict(task_weights)}: expected one above 0")
        self.weights = {n: float(weight / total) for n, weight in task_weights.items() if weight}
        """Shares of the tasks; their sum is 1."""
        super().__init__(dataset_path, None, num_workers=0, batch_size=batch_size, seed=seed)
        rows = [row for file in self._files for row in file.scan()]
        tasks = [str(row.get("task")) if isinstance(row, dict) else "" for row in rows]
        sets = {}
        for name in self.weights:
            if name not in tasks:
                near = near_or_all(name, sorted(set(tasks)), "tasks there")
                raise DataError(f"task_weights: {name}: {dataset_path} has no rows of it; {near}")
            others = array("q", (i for i, task in enumerate(tasks) if task != name))
            sets[name] = WithoutRows(self.source, others)
        self.source = MixedSource(sets, self.weights)
        self._order = MixedOrder(self.source, seed, shuffle=False)

    @checked
    def read(self, count: Positive) -> list[Problem]:
        """Return the next rows.

        Raises:
            DataError: a malformed row.
        """
        problems = super().read(count)
        for problem in problems:
            problem.extra["task"] = self.source.set_of(problem.index)
        return problems

    def __iter__(self) -> Iterator[list[Problem]]:
        while True:
            yield self.read(self.batch_size)


@checked
def get_dataloader(
    dataset_path: str | Path,
    task_weights: Mapping[str, NonNegativeFinite],
    batch_size: Positive,
    seed: int = 0,
) -> TaskDataLoader:
    """Mix the rows of several tasks: each has its share of an epoch (`data.mixed`), and goes
    through its rows in order, again and again. `extra["task"]` of a row names its task.

    Args:
        dataset_path: what `DataProvider` takes, of rows with a column `task`.
        task_weights: how often each task is drawn; any numbers, of which the shares are taken.
        batch_size: rows of a batch.
        seed: seed of the order.

    Raises:
        DataError: no such file, a task without rows, or weights that are all 0.
    """
    return TaskDataLoader(dataset_path, task_weights, batch_size, seed)
