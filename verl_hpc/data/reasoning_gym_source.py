"""Procedurally generated problems of reasoning-gym."""

from __future__ import annotations

import dataclasses
import sys
from typing import TYPE_CHECKING

from verl_hpc.config.data import ReasoningGymConfig
from verl_hpc.config.explain import near_or_all
from verl_hpc.data.problem import Problem
from verl_hpc.errors import DataError

if TYPE_CHECKING:
    from reasoning_gym.dataset import ProceduralDataset

HASH_ORDERED_TASKS = frozenset(
    ("isomorphic_strings", "knight_swap", "polynomial_multiplication", "ransom_note", "word_ladder")
)
"""Tasks that draw from a set of strings, whose order each Python process chooses anew."""


class ReasoningGymSource:
    """Row i is the i-th problem of a task, the same on every rank and in every run.

    `extra` of a problem is reasoning-gym's entry, with the task's options beside it: all that its
    own scorer needs.
    """

    def __init__(self, config: ReasoningGymConfig) -> None:
        self._config = config
        self._dataset = _create(config)

    def __len__(self) -> int:
        return self._config.size

    def __getitem__(self, index: int) -> Problem:
        if not 0 <= index < self._config.size:
            raise IndexError(index)
        entry = self._dataset[index]
        return Problem(
            index=index,
            # Not str.format: templates may hold other braces, such as \boxed{}.
            prompt=self._config.template.replace("{question}", entry["question"]),
            data_source=f"reasoning_gym/{self._config.task}",
            ground_truth=entry["answer"],
            extra={**entry, "options": self._config.options},
            answer=entry["answer"],
        )


def _create(config: ReasoningGymConfig) -> ProceduralDataset:
    from reasoning_gym.factory import DATASETS, create_dataset

    task = config.task
    if task not in DATASETS:
        hint = near_or_all(task, DATASETS, "tasks")
        raise DataError(f"reasoning-gym has no task {task!r}; {hint}")
    if task in HASH_ORDERED_TASKS and sys.flags.hash_randomization:
        raise DataError(
            f"reasoning-gym's {task} depends on the order of Python's sets of strings, so ranks "
            "would see different problems; start the job with PYTHONHASHSEED=0"
        )
    try:
        return create_dataset(task, size=config.size, seed=config.seed, **config.options)
    except (AssertionError, AttributeError, TypeError, ValueError) as error:
        names = ", ".join(field.name for field in dataclasses.fields(DATASETS[task][1]))
        raise DataError(
            f"reasoning-gym's {task} refuses options = {config.options}: {error}; "
            f"its options are {names}"
        ) from error
