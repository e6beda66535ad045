"""Rows for torch's DataLoader in batches of like length, and rows of tasks mixed by weight."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from random import Random
from typing import Annotated, Any

from torch.utils.data import Sampler

from verl_hpc.api.data import DataProvider
from verl_hpc.api.prompts import plain
from verl_hpc.config.arguments import checked, having
from verl_hpc.config.explain import near_or_all, shown
from verl_hpc.data.formats import FORMATS
from verl_hpc.data.order import Position, permute
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

    def __init__(
        self,
        dataset_path: str | Path,
        task_weights: Mapping[str, float],
        batch_size: int,
        seed: int,
    ) -> None:
        path, total = Path(dataset_path), sum(task_weights.values())
        if total <= 0:
            raise DataError(f"task_weights = {dict(task_weights)}: expected one above 0")
        self.weights = {name: float(weight / total) for name, weight in task_weights.items()}
        """Shares of the tasks; their sum is 1."""
        files = [_file_of(name, path) for name in task_weights] if path.is_dir() else [path]
        super().__init__(files, None, num_workers=0, batch_size=batch_size, seed=seed)
        if path.is_dir():
            pairs = zip(files, self._files, strict=True)
            self._task_of = [file.stem for file, rows in pairs for _ in range(len(rows))]
        else:
            rows = (row for row in self._files[0].scan() if isinstance(row, dict))
            self._task_of = [str(row.get("task")) for row in rows]
        for name in self.weights.keys() - set(self._task_of):
            near = near_or_all(name, sorted(set(self._task_of)), "tasks there")
            raise DataError(f"task_weights: {name}: {path} has no rows of it; {near}")
        self._order = _Draws(self._task_of, self.weights, seed)

    @checked
    def read(self, count: Positive) -> list[Problem]:
        """Return the next rows.

        Raises:
            DataError: a malformed row.
        """
        problems = super().read(count)
        for problem in problems:
            problem.extra["task"] = self._task_of[problem.index]
        return problems

    def __iter__(self) -> Iterator[list[Problem]]:
        while True:
            yield self.read(self.batch_size)


class _Draws:
    """An endless stream of row numbers, each drawn from its place in the stream alone, so that a
    resumed loader draws the same."""

    def __init__(self, tasks: list[str], weights: Mapping[str, float], seed: int) -> None:
        self._rows = {name: [i for i, t in enumerate(tasks) if t == name] for name in weights}
        self._weights, self._seed = weights, seed
        self._at, self._drawn = 0, Counter[str]()

    def take(self, position: Position, count: int) -> tuple[list[int], Position]:
        """See `Order.take`."""
        if position.offset != self._at:
            self._drawn = Counter(map(self._draw, range(position.offset)))
        self._at, taken = position.offset + count, list[int]()
        for place in range(position.offset, self._at):
            name = self._draw(place)
            rows = self._rows[name]
            taken.append(rows[self._drawn[name] % len(rows)])
            self._drawn[name] += 1
        return taken, Position(0, self._at)

    def _draw(self, place: int) -> str:
        random = Random(f"{self._seed}/tasks/{place}")  # noqa: S311
        return random.choices(list(self._weights), list(self._weights.values()))[0]


def _file_of(name: str, directory: Path) -> Path:
    paths = [p for kind in FORMATS if (p := directory / f"{name}.{kind}").is_file()]
    if len(paths) == 1:
        return paths[0]
    names = sorted(p.stem for p in directory.iterdir() if p.suffix[1:] in FORMATS)
    raise DataError(
        f"task_weights: {name}: {len(paths)} of {name}.parquet and {name}.jsonl in {directory}, "
        f"expected one; {near_or_all(name, names, 'tasks there')}"
    )


@checked
def get_dataloader(
    dataset_path: str | Path,
    task_weights: Mapping[str, NonNegativeFinite],
    batch_size: Positive,
    seed: int = 0,
) -> TaskDataLoader:
    """Mix the rows of several tasks: each row's task is drawn by the weights, each task goes
    through its rows in order, again and again. `extra["task"]` of a row names its task.

    Args:
        dataset_path: a file whose rows have a column `task`, or a directory with a file for each
            task, `TASK.jsonl` or `TASK.parquet`.
        task_weights: how often each task is drawn; any numbers, of which the shares are taken.
        batch_size: rows of a batch.
        seed: seed of the draws.

    Raises:
        DataError: no such file, a task without rows, or weights that are all 0.
    """
    return TaskDataLoader(dataset_path, task_weights, batch_size, seed)
