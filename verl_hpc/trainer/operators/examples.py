"""Rows of a data set as examples: answers to train on, or pairs to compare."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch

from verl_hpc.config.rollout import RolloutConfig
from verl_hpc.data.prompts import Chat, encode_examples, fit_prompt
from verl_hpc.trainer.batch import MASK, TOKENS, Columns, Sample, Samples, StepRows
from verl_hpc.trainer.operators.assign import (
    DROPPED,
    AssignSettings,
    assign_groups,
    check_samples,
    length_metrics,
    warn_of_dropped,
)
from verl_hpc.trainer.placement import Placement
from verl_hpc.trainer.problems import StepProblems
from verl_hpc.trainer.recipe import Metrics, operator

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class ExampleSettings:
    """The data to learn from, and what samples are assigned by."""

    problems: StepProblems
    tokenizer: PreTrainedTokenizerBase
    chat: Chat
    limits: RolloutConfig
    """Lengths, and what is done with prompts that are too long."""
    assign: AssignSettings
    per_row: Literal[1, 2] = 1
    """2: the chosen and the rejected answer of a row, neighbours on the same ranks and in the same
    mini-batch."""
    data_set: str = "data.train"
    """What errors call it."""


@operator("samples", "sequences", shared=("samples",))
def examples(
    place: Placement, settings: ExampleSettings, rows: StepRows
) -> tuple[tuple[Samples, Columns], Metrics]:
    """Encode a step's rows; every rank encodes all of them and keeps its group's.

    Answers longer than rollout.max_response_tokens lose their end; prompts follow
    rollout.overlong_prompt.

    Raises:
        DataError: on every rank: a row without an answer or a pair, an overlong prompt, or no row
            left.
    """
    encoded = place.together(lambda: _encode(settings, rows))
    found = [
        Sample(i, i // settings.per_row, len(prompt), len(answer), cut)
        for i, (prompt, answer, cut) in enumerate(encoded)
    ]
    when, limit = f"step {rows.step}", settings.assign.max_prompt_tokens
    check_samples(place, limit, when, found, settings.data_set)
    dropped = len(rows.rows) - len(found) // settings.per_row
    warn_of_dropped(place, limit, when, dropped, len(rows.rows))
    samples = assign_groups(settings.assign, found, together=settings.per_row, step=rows.step)
    mine = samples.owned_by(place.name, place.index)
    tokens = [torch.tensor([*encoded[i][0], *encoded[i][1]], device=place.device) for i in mine]
    masks = [torch.ones(len(encoded[i][1]), dtype=torch.uint8, device=place.device) for i in mine]
    columns = Columns(mine, {TOKENS: tokens, MASK: masks})
    return (samples, columns), length_metrics(found) | {DROPPED: float(dropped)}


def _encode(settings: ExampleSettings, rows: StepRows) -> list[tuple[list[int], list[int], bool]]:
    """(prompt ids, answer ids, whether the answer was cut) of each answer of rows that are kept."""
    limits = settings.limits
    found = []
    for problem in settings.problems.read(rows.rows):
        prompt, *answers = encode_examples(
            problem, settings.tokenizer, settings.chat, settings.per_row
        )
        fitted = fit_prompt(prompt, limits.max_prompt_tokens, limits.overlong_prompt, problem.where)
        if fitted is not None:
            most = limits.max_response_tokens
            found += [(fitted, answer[:most], len(answer) > most) for answer in answers]
    return found
