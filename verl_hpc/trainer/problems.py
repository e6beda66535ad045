"""The data of a run, opened on every rank and checked on one."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass

from verl_hpc.config.run import RunConfig
from verl_hpc.data.check import Checked, WithoutRows, check_data
from verl_hpc.data.sources import Source, open_source
from verl_hpc.runtime.session import Session

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Problems:
    """What to train on and what to evaluate on."""

    train: Source
    evaluation: Source | None
    facts: Mapping[str, int]
    """About the rows and prompts of evaluation; empty without."""


def open_problems(session: Session, config: RunConfig) -> Problems:
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
        control.together(lambda: check_data(data, train, evaluation) if leads else Checked())
    )
    if leads and checked.warning:
        _logger.warning("%s", checked.warning)
    if checked.dropped:
        train = WithoutRows(train, checked.dropped)
    return Problems(train, evaluation, checked.facts)
