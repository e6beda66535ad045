"""The data of a run, opened on every rank and checked on one."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from verl_hpc.config.run import RunConfig
from verl_hpc.data.check import Checked, WithCheck, WithoutRows, check_data
from verl_hpc.data.lengths import LengthCheck
from verl_hpc.data.problem import Problem
from verl_hpc.data.prompts import encode_prompt, fit_prompt
from verl_hpc.data.sources import Source, open_source
from verl_hpc.errors import DataError, RewardError
from verl_hpc.rewards.registry import function_for
from verl_hpc.runtime.session import Session

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Problems:
    """What to train on and what to evaluate on."""

    train: Source
    evaluation: Source | None
    facts: Mapping[str, int]
    """About the rows and prompts of evaluation; empty without."""


def open_problems(
    session: Session, config: RunConfig, tokenizer: PreTrainedTokenizerBase
) -> Problems:
    """Open and check the data; every rank calls it.

    Raises:
        DataError: on every rank alike, as `open_source` and `check_data`.
    """
    control, data = session.control, config.data
    imitates = config.recipe == "sft"
    train = control.together(lambda: open_source(data.train, needs_answer=imitates))
    evaluation = None
    if data.evaluation is not None:
        chosen = data.evaluation
        evaluation = control.together(lambda: open_source(chosen))
    leads = session.world.rank == 0
    checked = control.broadcast(
        control.together(
            lambda: _check(config, tokenizer, train, evaluation) if leads else Checked()
        )
    )
    if leads and checked.warning:
        _logger.warning("%s", checked.warning)
    if checked.dropped:
        train = WithoutRows(train, checked.dropped)
    return Problems(train, evaluation, checked.facts)


def _check(
    config: RunConfig,
    tokenizer: PreTrainedTokenizerBase,
    train: Source,
    evaluation: Source | None,
) -> Checked:
    rollout, chat = config.rollout, config.data.chat
    limit, policy = rollout.max_prompt_tokens, rollout.overlong_prompt
    lengths = LengthCheck(tokenizer, chat, limit)

    def check_training(problem: Problem) -> None:
        if config.recipe != "sft":
            _check_reward(config, problem)
        if policy == "error":
            lengths.check(problem)

    def check_evaluation(problem: Problem) -> None:
        _check_reward(config, problem)
        fit_prompt(encode_prompt(problem, tokenizer, chat), limit, policy, problem.where)

    if config.data.check == "all":
        train = WithCheck(train, check_training)
        if evaluation is not None and config.evaluation.wanted:
            evaluation = WithCheck(evaluation, check_evaluation)
    return check_data(config.data, train, evaluation)


def _check_reward(config: RunConfig, problem: Problem) -> None:
    if config.reward.function == "auto":
        try:
            function_for(problem.data_source)
        except RewardError as error:
            raise DataError(f"{problem.where}: {error}") from None
