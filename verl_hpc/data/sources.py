"""Data sets as random-access sequences of problems."""

from __future__ import annotations

from collections.abc import Sequence

from verl_hpc.config.data import FilesConfig, MixedConfig, OwnSourceConfig, TrainConfig, TrainOn
from verl_hpc.data.files import FilesSource
from verl_hpc.data.mixed import MixedSource
from verl_hpc.data.problem import Problem, Source
from verl_hpc.data.reasoning_gym_source import ReasoningGymSource
from verl_hpc.data.rows import Needs
from verl_hpc.errors import DataError


def open_source(config: TrainConfig, needs: Needs = "prompt", train_on: TrainOn = "all") -> Source:
    """Open a data set.

    Args:
        needs: parts that every row of files must have.
        train_on: the answers of a conversation to imitate (`data.train_on`).

    Raises:
        DataError: missing, unreadable or empty files, missing columns, or a task or options that
            reasoning-gym does not have.
    """
    if isinstance(config, MixedConfig):
        sets = {n: open_source(s.source, needs, train_on) for n, s in config.sets.items()}
        return MixedSource(sets, config.weights)
    if isinstance(config, FilesConfig):
        return FilesSource(config, needs, train_on=train_on)
    if isinstance(config, OwnSourceConfig):
        raise DataError(
            f"{config.path}: its rows are written when the run starts; give the run directory, "
            "whose config.yaml names their file"
        )
    return ReasoningGymSource(config)


def read_problems(source: Source, indices: Sequence[int]) -> list[Problem]:
    """Return the problems at `indices`, in that order.

    They are read in ascending order, so that a row group of a file is decoded once.

    Raises:
        DataError: a malformed row.
    """
    by_index = {index: source[index] for index in sorted(set(indices))}
    return [by_index[index] for index in indices]
