"""Rows of several tasks, mixed by weight."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from random import Random

from verl_hpc.api.data import DataProvider, check_count, check_position, position_of
from verl_hpc.config.arguments import checked
from verl_hpc.config.explain import near_or_all, shown
from verl_hpc.data.formats import FORMATS
from verl_hpc.data.order import Position
from verl_hpc.data.problem import Problem
from verl_hpc.errors import DataError


class TaskDataLoader:
    """Endless batches; each row's task is drawn by the weights, each task goes through its rows in
    order, again and again.

    Args:
        tasks: the rows of each.
        weights: how often each is drawn; any numbers, of which the shares are taken.
        batch_size: rows of a batch.
        seed: of the draws.
    """

    @checked
    def __init__(
        self,
        tasks: Mapping[str, DataProvider],
        weights: Mapping[str, float],
        batch_size: int,
        seed: int = 0,
    ) -> None:
        if batch_size < 1:
            raise DataError(f"batch_size = {batch_size}; expected at least 1 row")
        self._tasks, self.batch_size, self._seed = dict(tasks), batch_size, seed
        self.count = 0
        """Rows that were handed out."""
        self.set_weights(weights)

    @property
    def weights(self) -> dict[str, float]:
        """Shares of the tasks; their sum is 1."""
        return dict(self._weights)

    @checked
    def set_weights(self, weights: Mapping[str, float]) -> None:
        """From now on.

        Raises:
            DataError: a task that has no rows, one without a weight, or weights that are no shares.
            ConfigError: they are no numbers by name.
        """
        for name in weights:
            if name not in self._tasks:
                raise DataError(f"task_weights: {name}: {near_or_all(name, self._tasks, 'tasks')}")
        missing = [name for name in self._tasks if name not in weights]
        if missing:
            raise DataError(f"task_weights: {missing[0]} has none; 0 leaves a task out")
        total = sum(weights.values())
        if any(not math.isfinite(w) or w < 0 for w in weights.values()) or total <= 0:
            raise DataError(
                f"task_weights = {dict(weights)}: expected shares, at least one above 0"
            )
        self._weights = {name: float(weights[name] / total) for name in self._tasks}

    def read(self, count: int) -> list[Problem]:
        """The next problems; `extra["task"]` names the task of each.

        Raises:
            DataError: a malformed row, or less than one row.
        """
        count, found = check_count(count, "TaskDataLoader"), []
        for _ in range(count):
            name = self._task_of(self.count)
            (problem,) = self._tasks[name].read(1)
            problem.extra["task"] = name
            found.append(problem)
            self.count += 1
        return found

    def _task_of(self, row: int) -> str:
        """Drawn for this row alone, so that a resumed loader draws the same."""
        draw = Random(f"{self._seed}/tasks/{row}")  # noqa: S311
        (name,) = draw.choices(list(self._weights), list(self._weights.values()))
        return name

    @property
    def position(self) -> Position:
        """Of the next row, of all tasks together."""
        return Position(0, self.count)

    def seek(self, position: Position) -> None:
        """Go on behind the first rows that these weights draw: a checkpoint of `PPOTrainer` has one
        position. `load_state_dict` also goes on where weights have changed on the way.

        Raises:
            DataError: it is no position.
        """
        position = check_position(position, "TaskDataLoader")
        drawn = Counter(self._task_of(row) for row in range(position.offset))
        for name, provider in self._tasks.items():
            provider.seek(Position(*divmod(drawn[name], len(provider))))
        self.count = position.offset

    def __iter__(self) -> Iterator[list[Problem]]:
        while True:
            yield self.read(self.batch_size)

    def state_dict(self) -> dict[str, object]:
        """Where every task is, as plain numbers."""
        tasks = {name: provider.state_dict() for name, provider in self._tasks.items()}
        return {"count": self.count, "tasks": tasks}

    @checked
    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Go on from what `state_dict` gave.

        Raises:
            DataError, ConfigError: it is something else, or of other tasks.
        """
        count, tasks = state.get("count"), state.get("tasks")
        if type(count) is not int or not isinstance(tasks, Mapping):
            raise DataError(
                f"TaskDataLoader.load_state_dict: {shown(dict(state))}; expected what state_dict() "
                "gave"
            )
        if set(tasks) != set(self._tasks):
            raise DataError(
                f"TaskDataLoader.load_state_dict: it is of the tasks {', '.join(map(str, tasks))}, "
                f"and this loader has {', '.join(self._tasks)}"
            )
        positions = {name: position_of(tasks[name], f"tasks[{name!r}]") for name in self._tasks}
        self.count = count
        for name, provider in self._tasks.items():
            provider.seek(positions[name])


@checked
def get_dataloader(
    dataset_path: str | Path,
    task_weights: Mapping[str, float],
    batch_size: int,
    seed: int = 0,
) -> TaskDataLoader:
    """Rows of several tasks: a directory with a file for each, `TASK.jsonl` or `TASK.parquet`.

    Args:
        task_weights: how often each task is drawn.

    Raises:
        DataError: no such directory or file, or weights that do not fit.
    """
    directory, tasks = Path(dataset_path), {}
    if not directory.is_dir():
        raise DataError(
            f"dataset_path = {directory}: no directory; expected one with TASK.jsonl or "
            "TASK.parquet for every task"
        )
    for name in task_weights:
        found = [directory / f"{name}.{kind}" for kind in FORMATS]
        there = [path for path in found if path.is_file()]
        if len(there) != 1:
            names = sorted(p.stem for p in directory.iterdir() if p.suffix[1:] in FORMATS)
            raise DataError(
                f"task_weights: {name}: {len(there)} of {' and '.join(p.name for p in found)} in "
                f"{directory}, expected one; {near_or_all(name, names, 'tasks there')}"
            )
        tasks[name] = DataProvider(there[0], there[0].suffix[1:], num_workers=0)
    return TaskDataLoader(tasks, task_weights, batch_size, seed)
