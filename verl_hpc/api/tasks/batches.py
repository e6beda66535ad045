"""Batches of a data loader as prompts of tasks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from verl_hpc.api.tasks.settings import TasksConfig
from verl_hpc.api.tasks.state import joined, split
from verl_hpc.config.explain import near_or_all, shown
from verl_hpc.data.problem import Problem
from verl_hpc.data.rows import problem_of
from verl_hpc.errors import ConfigError, DataError


class TaskBatches:
    """Endless batches of a data loader, with a position, and weights where it takes some.

    Args:
        loader: what `get_dataloader` gives; or an iterable of batches, which begins again when it
            ends.
        config: of the tasks.

    Raises:
        ConfigError: something else, or weights of tasks.yaml that it does not take.
    """

    def __init__(self, loader: Any, config: TasksConfig) -> None:
        if not hasattr(loader, "__iter__"):
            raise ConfigError(
                f"dataloader is {type(loader).__name__}; expected what get_dataloader gives, or an "
                "iterable of batches"
            )
        self._loader, self._tasks = loader, tuple(config.tasks)
        self._count = 0
        """Batches that were handed out."""
        self._iterator: Iterator[Any] | None = None
        self._check_tasks()
        given = {n: t.weight for n, t in config.tasks.items() if t.weight is not None}
        if given:
            self.set_weights({name: given.get(name, 1.0) for name in self._tasks})

    def _check_tasks(self) -> None:
        for name in self.weights or {}:
            if name not in self._tasks:
                near = near_or_all(name, self._tasks, "tasks")
                raise ConfigError(f"dataloader: task {name!r} is not in tasks.yaml; {near}")
        missing = [name for name in self._tasks if name not in (self.weights or self._tasks)]
        if missing:
            raise ConfigError(
                f"tasks.{missing[0]}: the dataloader has no rows of it; give it in task_weights, "
                "or leave the task out"
            )

    @property
    def weights(self) -> dict[str, float] | None:
        """Shares of the tasks; None where the loader does not tell."""
        found = getattr(self._loader, "weights", None)
        return dict(found) if isinstance(found, Mapping) else None

    def set_weights(self, weights: Mapping[str, float]) -> None:
        """From the next batch on.

        Raises:
            ConfigError: the loader takes none.
        """
        if not callable(getattr(self._loader, "set_weights", None)):
            raise ConfigError(
                f"weights of tasks: {type(self._loader).__name__} has no set_weights(weights); "
                "use get_dataloader(dataset_path, task_weights, batch_size)"
            )
        self._loader.set_weights(dict(weights))

    def next(self) -> list[Problem]:
        """The next batch.

        Raises:
            DataError: a row that cannot be used, or a loader without batches.
            ConfigError: a generator has ended.
        """
        for _ in range(2):
            if self._iterator is None:
                self._iterator = iter(self._loader)
            batch = next(self._iterator, None)
            if batch is not None:
                self._count += 1
                rows = _rows(batch, f"dataloader: batch {self._count}")
                return [self._problem(i, row) for i, row in enumerate(rows)]
            self._iterator = None
            if self._count:
                self.check_goes_back()
        raise DataError("dataloader: it has no batches; give it rows")

    def _problem(self, index: int, row: Any) -> Problem:
        if isinstance(row, Problem):
            return row
        if not isinstance(row, Mapping):
            raise DataError(
                f"dataloader: row {index} of a batch is {type(row).__name__}; expected a mapping "
                "with task, prompt, and answer or ground_truth"
            )
        found = problem_of(row, index, f"row {index} of batch {self._count}")
        found.extra.setdefault("task", row.get("task"))
        return found

    def by_task(self, problems: Sequence[Problem]) -> dict[str, list[Problem]]:
        """The prompts of each task that has some, in the order of tasks.yaml.

        Raises:
            DataError: a prompt of no task, or no prompts.
        """
        if not problems:
            raise DataError("a step has no prompts; give it at least one")
        found: dict[str, list[Problem]] = {name: [] for name in self._tasks}
        for problem in problems:
            name = problem.extra.get("task")
            if name is None and len(self._tasks) == 1:
                (name,) = self._tasks
            if name not in found:
                near = near_or_all(str(name), self._tasks, "tasks")
                raise DataError(f"{problem.where}: task = {name!r}: not in tasks.yaml; {near}")
            found[name].append(problem)
        return {name: part for name, part in found.items() if part}

    def check_goes_back(self) -> None:
        """Raises: ConfigError: batches that are gone do not come again."""
        has_position = callable(getattr(self._loader, "load_state_dict", None))
        if hasattr(self._loader, "__next__") and not has_position:
            raise ConfigError(
                f"dataloader is a {type(self._loader).__name__}, which gives each batch once, so "
                "that training cannot go back to earlier ones; give a list, or an object whose "
                "__iter__ begins anew"
            )

    def state(self) -> dict[str, float]:
        """The position, as numbers by name."""
        found = {"batches": float(self._count)}
        if callable(getattr(self._loader, "state_dict", None)):
            found |= joined({"loader": _flat(self._loader.state_dict())})
        return found

    def load_state(self, state: Mapping[str, float]) -> None:
        """Go on from what `state` gave; a loader without a position is read up to there.

        Raises:
            ConfigError: it is a generator that has begun.
            DataError: it has no batches.
        """
        has_begun = self._count > 0
        self._count, self._iterator = int(state["batches"]), None
        of_loader = split(state).get("loader")
        if callable(getattr(self._loader, "load_state_dict", None)) and of_loader:
            self._loader.load_state_dict(_nested(of_loader))
            return
        if has_begun:
            self.check_goes_back()
        left = self._count
        while left:
            self._iterator = iter(self._loader)
            read = sum(1 for _ in islice(self._iterator, left))
            if not read:
                raise DataError("dataloader: it has no batches; give it rows")
            left -= read


def _rows(batch: Any, where: str) -> Sequence[Any]:
    """Of a list of rows, or of a mapping of columns, as torch's DataLoader makes them.

    Raises:
        DataError: neither, or columns that are none, or of different lengths.
    """
    if isinstance(batch, str) or not isinstance(batch, Iterable):
        raise DataError(f"{where} is {type(batch).__name__}; expected a list of rows")
    if not isinstance(batch, Mapping):
        return list(batch)
    columns = [() if isinstance(c, str | Mapping) else c for c in batch.values()]
    lengths = {len(c) if hasattr(c, "__len__") else 0 for c in columns}
    if len(lengths) != 1 or 0 in lengths:
        raise DataError(
            f"{where} is a mapping, {shown(batch)}; expected a list of rows, or as many values in "
            "each column (rows of chats, and of columns of their own, are a collate_fn=list)"
        )
    return [dict(zip(batch, values, strict=True)) for values in zip(*columns, strict=True)]


def _flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, float]:
    found: dict[str, float] = {}
    for name, value in tree.items():
        if isinstance(value, Mapping):
            found |= _flat(value, f"{prefix}{name}/")
        elif isinstance(value, int) and float(value) == value:
            found[f"{prefix}{name}"] = float(value)
        else:
            raise DataError(
                f"dataloader: state_dict has {prefix}{name} = {shown(value)}; a checkpoint holds "
                "whole numbers by name, of at most 2**53"
            )
    return found


def _nested(flat: Mapping[str, float]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in flat.items():
        *above, last = name.split("/")
        node = found
        for part in above:
            node = node.setdefault(part, {})
        node[last] = int(value)
    return found
