"""Procedurally generated problems of reasoning-gym."""

from __future__ import annotations

import dataclasses
import math
import sys
from array import array
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from verl_hpc.config.data import ReasoningGymConfig
from verl_hpc.config.explain import near_or_all
from verl_hpc.data.problem import Problem
from verl_hpc.data.scan import Progress
from verl_hpc.data.split import digest, is_held_out, plain
from verl_hpc.errors import DataError
from verl_hpc.runtime.limit import TimeLimitExceeded, time_limit

if TYPE_CHECKING:
    from reasoning_gym.dataset import ProceduralDataset

HASH_ORDERED_TASKS = frozenset(
    ("isomorphic_strings", "knight_swap", "polynomial_multiplication", "ransom_note", "word_ladder")
)
"""Tasks that draw from a set of strings, whose order each Python process chooses anew."""


UNLUCKY = 40.0
"""A row of a split is looked for until the chance of having missed it is exp(-40)."""

ENTRY_S = 60.0
"""Longest that a task may take for one entry; most need less than a millisecond."""


class ReasoningGymSource:
    """A data set whose row i follows from the settings and i, on every rank and in every run.

    ==========  ==================================================================
    split       row i of n
    ==========  ==================================================================
    all         entry i of the task
    train       the first of entries i, i + n, i + 2n, ... that is not held out
    evaluation  the i-th entry that is held out and whose question is new
    ==========  ==================================================================

    So a row of train is found without those before it; evaluation is searched when it is opened.
    `extra` of a problem is reasoning-gym's entry with the task's options, all that its scorer
    needs.
    """

    def __init__(self, config: ReasoningGymConfig) -> None:
        self._config = config
        self._num_entries = config.size * _entries_per_row(config)
        self._dataset = _create(config, self._num_entries)
        self._held_out = self._distinct_held_out() if config.split == "evaluation" else array("q")

    def __len__(self) -> int:
        return self._config.size

    def __getitem__(self, index: int) -> Problem:
        """Generate one row.

        Raises:
            DataError: split is train, and nearly all of the task's few questions are held out.
        """
        if not 0 <= index < self._config.size:
            raise IndexError(index)
        entry = self._entry(index)
        return Problem(
            index=index,
            # Not str.format: templates may hold other braces, such as \boxed{}.
            prompt=self._config.template.replace("{question}", entry["question"]),
            data_source=f"reasoning_gym/{self._config.task}",
            ground_truth=entry["answer"],
            extra={**entry, "options": self._config.options},
            answer=entry["answer"],
            origin=f"{self._config.task} row {index}",
        )

    def scan(self) -> Iterator[Problem | DataError]:
        """Generate all rows in order."""
        return (self[index] for index in range(len(self)))

    def _entry(self, index: int) -> dict[str, Any]:
        config = self._config
        if config.split == "all":
            return self._generate(index)
        if config.split == "evaluation":
            return self._generate(self._held_out[index])
        for number in range(index, self._num_entries, config.size):
            entry = self._generate(number)
            if not is_held_out(entry["question"], config.evaluation_share):
                return entry
        raise DataError(
            f"{self._named()} finds no question for train in row {index}: the task has few "
            "questions, and they are held out for evaluation; widen its options, or lower "
            f"evaluation_share = {config.evaluation_share:g}"
        )

    def _distinct_held_out(self) -> array[int]:
        """Find the numbers of the entries that make up the evaluation split.

        With n found, the search for the next one stops where, by the odds of `UNLUCKY`, n + 1
        should have occurred.
        """
        config = self._config
        numbers, seen = array("q"), set()
        progress = Progress()
        number, last = 0, _entries_per_row(config)
        while len(numbers) < config.size and number < last:
            question = self._generate(number)["question"]
            key = digest(plain(question), size=16)
            if is_held_out(question, config.evaluation_share) and key not in seen:
                seen.add(key)
                numbers.append(number)
                last = min(
                    number + _entries_per_row(config) * (len(numbers) + 1), self._num_entries
                )
            number += 1
            progress.tell(config.task, len(numbers), config.size, "questions for evaluation found")
        if len(numbers) == config.size:
            return numbers
        raise DataError(
            f"{self._named()} has only {len(numbers)} different questions for evaluation among "
            f"{number:,} entries, size = {config.size}; lower size, widen the task's "
            f"options, or raise evaluation_share = {config.evaluation_share:g}"
        )

    def _generate(self, number: int) -> dict[str, Any]:
        try:
            with time_limit(ENTRY_S):
                return self._dataset[number]
        except TimeLimitExceeded as error:
            why = f"needs more than {ENTRY_S:g} s for entry {number}"
            raise DataError(f"{self._named()} {why}; choose options that are easier") from error
        except Exception as error:  # the task's own code
            raise DataError(
                f"{self._named()} fails in entry {number}: {type(error).__name__}: {error}; "
                "choose other options"
            ) from error

    def _named(self) -> str:
        return f"reasoning-gym's {self._config.task} with options = {self._config.options}"


def _entries_per_row(config: ReasoningGymConfig) -> int:
    """Return the most entries that are tried for each row."""
    if config.split == "all":
        return 1
    held_out = config.evaluation_share
    return math.ceil(UNLUCKY / (held_out if config.split == "evaluation" else 1 - held_out))


def _create(config: ReasoningGymConfig, num_entries: int) -> ProceduralDataset:
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
    most = sys.int_info.default_max_str_digits
    for name, value in config.options.items():
        if name.endswith("digits") and isinstance(value, int) and value > most:
            raise DataError(
                f"reasoning-gym's {task}: {name} = {value}: Python writes numbers of at most "
                f"{most} digits; lower it"
            )
    try:
        return create_dataset(task, size=num_entries, seed=config.seed, **config.options)
    except (AssertionError, AttributeError, TypeError, ValueError) as error:
        names = ", ".join(field.name for field in dataclasses.fields(DATASETS[task][1]))
        raise DataError(
            f"reasoning-gym's {task} refuses options = {config.options}: {error}; "
            f"its options are {names}"
        ) from error
