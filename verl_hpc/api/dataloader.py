"""Rows of several tasks, mixed by weight."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from random import Random

from verl_hpc.api.data import DataProvider
from verl_hpc.config.arguments import checked
from verl_hpc.config.explain import near_or_all
from verl_hpc.data.formats import FORMATS
from verl_hpc.data.order import Position
from verl_hpc.data.problem import Problem
from verl_hpc.errors import DataError
from verl_hpc.section import NonNegative, NonNegativeFinite, Positive


class TaskDataLoader:
    """Endless batches; each row's task is drawn by the weights, each task goes through its rows in
    order, again and again.

    Args:
        tasks: the rows of each.
        weights: how often each is drawn; any numbers, of which the shares are taken.
        batch_size: rows of a batch.
        seed: seed of the draws.

    Raises:
        DataError: weights that are all 0.
    """

    @checked
    def __init__(
        self,
        tasks: Mapping[str, DataProvider],
        weights: Mapping[str, NonNegativeFinite],
        batch_size: Positive,
        seed: int = 0,
    ) -> None:
        self._tasks, self.batch_size, self._seed = dict(tasks), batch_size, seed
        self.count = 0
        """Rows that were read."""
        total = sum(weights.values())
        if total <= 0:
            raise DataError(f"task_weights = {dict(weights)}: expected one above 0")
        self._weights = {name: float(weights[name] / total) for name in self._tasks}

    @property
    def weights(self) -> dict[str, float]:
        """Shares of the tasks; their sum is 1."""
        return dict(self._weights)

    @checked
    def read(self, count: Positive) -> list[Problem]:
        """Return the next problems; `extra["task"]` names the task of each.

        Raises:
            DataError: a malformed row.
        """
        problems = []
        for _ in range(count):
            name = self._task_of(self.count)
            (problem,) = self._tasks[name].read(1)
            problem.extra["task"] = name
            problems.append(problem)
            self.count += 1
        return problems

    def _task_of(self, row: int) -> str:
        """Draw the task of a row, from the row's number alone: a resumed loader draws the same."""
        draw = Random(f"{self._seed}/tasks/{row}")  # noqa: S311
        (name,) = draw.choices(list(self._weights), list(self._weights.values()))
        return name

    @property
    def position(self) -> Position:
        """Position of the next row, counted over all tasks."""
        return Position(0, self.count)

    def seek(self, position: Position) -> None:
        """Go on behind the first rows that these weights draw."""
        drawn = Counter(self._task_of(row) for row in range(position.offset))
        for name, provider in self._tasks.items():
            provider.seek(Position(*divmod(drawn[name], len(provider))))
        self.count = position.offset

    def __iter__(self) -> Iterator[list[Problem]]:
        while True:
            yield self.read(self.batch_size)

    def state_dict(self) -> dict[str, int]:
        """The number of rows that were read."""
        return {"count": self.count}

    @checked
    def load_state_dict(self, state: Mapping[str, NonNegative]) -> None:
        """Go on from what `state_dict` gave.

        Raises:
            DataError: it is something else.
        """
        if state.keys() != {"count"}:
            raise DataError(
                f"TaskDataLoader.load_state_dict: state is {dict(state)}; expected what "
                "state_dict() gave, such as {'count': 8}"
            )
        self.seek(Position(0, int(state["count"])))


@checked
def get_dataloader(
    dataset_path: str | Path, task_weights: Mapping[str, float], batch_size: int, seed: int = 0
) -> TaskDataLoader:
    """Mix the rows of several tasks: a directory with a file for each, `TASK.jsonl` or
    `TASK.parquet`.

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
        paths = [p for kind in FORMATS if (p := directory / f"{name}.{kind}").is_file()]
        if len(paths) != 1:
            names = sorted(p.stem for p in directory.iterdir() if p.suffix[1:] in FORMATS)
            raise DataError(
                f"task_weights: {name}: {len(paths)} of {name}.parquet and {name}.jsonl in "
                f"{directory}, expected one; {near_or_all(name, names, 'tasks there')}"
            )
        tasks[name] = DataProvider(paths[0], paths[0].suffix[1:], num_workers=0)
    return TaskDataLoader(tasks, task_weights, batch_size, seed)
