"""Open the run's data on every rank, and check them on one."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from verl_hpc.config.reward import RewardConfig
from verl_hpc.config.run import RunConfig
from verl_hpc.data.check import Checked, HeldOut, WithCheck, check_data
from verl_hpc.data.lengths import LengthCheck
from verl_hpc.data.mixed import without_rows
from verl_hpc.data.problem import Problem, Source
from verl_hpc.data.prompts import Encoder
from verl_hpc.data.rows import Needs
from verl_hpc.data.sources import open_source, read_problems
from verl_hpc.errors import DataError, RewardError
from verl_hpc.rewards.built_in import function_for
from verl_hpc.runtime.session import Session

_logger = logging.getLogger(__name__)


class StepProblems:
    """A data set that caches the rows read last: generation and scoring read the same rows."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self._last: dict[int, Problem] = {}

    def read(self, rows: Sequence[int]) -> list[Problem]:
        """Return the problems of rows, in that order.

        Raises:
            DataError: a malformed row.
        """
        if not self._last.keys() >= {*rows}:
            self._last = dict(zip(rows, read_problems(self.source, rows), strict=True))
        return [self._last[row] for row in rows]


@dataclass(frozen=True)
class Problems:
    """The training and evaluation data."""

    train: Source
    evaluation: Mapping[str, Source]
    """Evaluation data by the name of the set."""
    facts: Mapping[str, int]
    """Facts about the rows and prompts of evaluation; empty without one."""
    setting: str = "data.train"
    """Setting that names the training data, for messages."""


_NEEDS: Mapping[str, tuple[Needs, Needs]] = {
    "sft": ("prompt", "answer"),
    "reward_model": ("pair", "pair"),
    "dpo": ("pair", "pair"),
    "kto": ("pair", "label"),
}
"""Required contents of (evaluation, training) rows, by recipe."""


def open_problems(
    session: Session, config: RunConfig, encoder: Encoder, setting: str = "data.train"
) -> Problems:
    """Open and check the data; every rank calls it.

    Args:
        setting: names the training data in messages.

    Raises:
        DataError: on every rank; see `open_source` and `check_data`.
    """
    control, data = session.control, config.data
    # Tasks open and check their own rows later; here data.train is read as by its first reader.
    readers = [task.recipe for task in config.by_task.values() if task.data.train == data.train]
    recipe = next(iter(readers), config.recipe)
    needs, of_train = _NEEDS.get(recipe, ("prompt", "prompt"))
    if config.tasks or not config.evaluation.wanted:
        needs = "prompt"
    train = control.together(lambda: open_source(data.train, of_train, data.train_on))
    sets = config.evaluation_sets
    evaluation = control.together(
        lambda: {name: open_source(chosen.source, needs) for name, chosen in sets.items()}
    )
    leads = session.world.rank == 0
    checked = control.broadcast(
        control.together(
            lambda: _check(config, encoder, train, evaluation, setting) if leads else Checked()
        )
    )
    if leads and checked.warning:
        _logger.warning("%s", checked.warning)
    if checked.dropped:
        train = without_rows(train, checked.dropped)
    return Problems(train, evaluation, checked.facts, setting)


def _check(
    config: RunConfig,
    encoder: Encoder,
    train: Source,
    evaluation: Mapping[str, Source],
    setting: str,
) -> Checked:
    data, sets = config.data, config.evaluation_sets
    held_out = [
        HeldOut(setting_of(config, name), chosen.source, evaluation[name])
        for name, chosen in sets.items()
    ]
    if data.check != "all":
        return check_data(data, train, held_out, setting)
    checked = None
    if data.overlap == "drop" and held_out:
        # Rows that leave training may be of no use to it.
        checked = check_data(data, train, held_out, setting)
        train = without_rows(train, checked.dropped)
    reward = config.reward if config.calls_reward and not config.tasks else None
    train = WithCheck(train, _usable(config, encoder, reward))
    if config.evaluation.wanted:
        for number, chosen in enumerate(sets.values()):
            reward = (chosen.reward or config.reward) if config.generates else None
            check = _usable(config, encoder, reward)
            source = WithCheck(held_out[number].source, check, chosen.max_prompts)
            held_out[number] = replace(held_out[number], source=source)
    result = check_data(data, train, held_out, setting)
    return checked or result


def setting_of(config: RunConfig, name: str) -> str:
    """Return the settings key of an evaluation set's data."""
    return f"evaluation.sets.{name}.source" if config.evaluation.sets else "data.evaluation"


def _usable(
    config: RunConfig, encoder: Encoder, reward: RewardConfig | None
) -> Callable[[Problem], None]:
    """Return a check that raises DataError for a row that a step could not use.

    Args:
        reward: scores the row's responses; None if no reward function does.
    """
    rollout = config.rollout
    lengths = LengthCheck(encoder, rollout.max_prompt_tokens)

    def check(problem: Problem) -> None:
        if reward is not None and "auto" in reward.functions:
            _check_origin(problem)
        if rollout.overlong_prompt == "error":
            lengths.check(problem)

    return check


def _check_origin(problem: Problem) -> None:
    """Raises: DataError: no reward function is known for the row's data_source."""
    if not isinstance(problem.data_source, str):
        raise DataError(f"{problem.where}: data_source = {problem.data_source!r} is not text")
    try:
        function_for(problem.data_source)
    except RewardError as error:
        raise DataError(f"{problem.where}: {error}") from None
