"""Encode rows of a data set as examples: answers to train on, or pairs to compare."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from verl_hpc.data.prompts import Encoder, fit_prompt
from verl_hpc.hf.pictures import packed
from verl_hpc.step.batch import IMAGES, MASK, TOKENS, Columns, Sample, Samples, StepRows, as_bytes
from verl_hpc.step.operator import Metrics, operator
from verl_hpc.step.operators.assign import (
    DROPPED,
    AssignSettings,
    assign_groups,
    count_dropped,
    length_metrics,
)
from verl_hpc.step.placement import Placement
from verl_hpc.step.problems import StepProblems

_logger = logging.getLogger(__name__)

SAME_WHEN_CUT = "response_length/num_same_pairs"
"""Pairs of a step whose answers are equal within rollout.max_response_tokens."""


@dataclass(frozen=True)
class ExampleSettings:
    """The data to learn from, and how samples are assigned."""

    problems: StepProblems
    encoder: Encoder
    assign: AssignSettings
    per_row: Literal[1, 2] = 1
    """Answers per row. 2: the chosen and the rejected answer, neighbours on the same ranks and in
    the same mini-batch."""


@dataclass(frozen=True)
class Example:
    """A prompt and an answer as token ids."""

    prompt: Sequence[int]
    answer: Sequence[int]
    mask: Sequence[int]
    """1 for each token of the answer to learn; 0 for other speakers' turns."""
    truncated: bool
    """Whether the answer was cut at the length limit."""
    label: bool | None = None
    """Whether the answer is good, if the row has a label."""
    images: bytes = b""
    """Images of the prompt (`hf.pictures.packed`)."""


@operator("samples", "sequences", shared=("samples",))
def examples(
    place: Placement, settings: ExampleSettings, rows: StepRows
) -> tuple[tuple[Samples, Columns], Metrics]:
    """Encode a step's rows; every rank encodes all of them and keeps its group's.

    Answers are cut to rollout.max_response_tokens; overlong prompts follow rollout.overlong_prompt.

    Raises:
        DataError: on every rank: a row without an answer or a pair, an overlong prompt, or no row
            left.
    """
    encoded, samples, columns, metrics = encode_step(place, settings, rows)
    if settings.per_row == 2:
        metrics[SAME_WHEN_CUT] = float(_num_same(place, rows, encoded))
    return (samples, columns), metrics


def encode_step(
    place: Placement, settings: ExampleSettings, rows: StepRows
) -> tuple[list[Example], Samples, Columns, dict[str, float]]:
    """Encode a step's rows as `examples` does; also return all examples as token ids."""
    encoded = place.control.together(lambda: encode_rows(settings, rows))
    samples, columns = assign_examples(place, settings, rows, encoded)
    longest = settings.assign.config.rollout.max_prompt_tokens
    metrics = length_metrics(samples.samples, longest)
    metrics[DROPPED] = float(len(rows.rows) - len(encoded) // settings.per_row)
    return encoded, samples, columns, metrics


def encode_rows(settings: ExampleSettings, rows: StepRows) -> list[Example]:
    """Encode each answer of the rows that are kept, in order.

    Raises:
        DataError: see `examples`.
    """
    limits = settings.assign.config.rollout
    kept = []
    for problem in settings.problems.read(rows.rows):
        prompt, answers = settings.encoder.example(problem, settings.per_row)
        policy, has_images = limits.overlong_prompt, bool(problem.images)
        fitted = fit_prompt(prompt, limits.max_prompt_tokens, policy, problem.where, has_images)
        images = packed(settings.encoder.image_prompt(problem, prompt))
        if fitted is not None:
            most = limits.max_response_tokens
            kept += [
                Example(
                    fitted, a.ids[:most], a.mask[:most], len(a.ids) > most, problem.label, images
                )
                for a in answers
            ]
    return kept


def assign_examples(
    place: Placement, settings: ExampleSettings, rows: StepRows, encoded: Sequence[Example]
) -> tuple[Samples, Columns]:
    """Assign examples to ranks; return the assignment, equal on every rank, and the columns of this
    rank's group.

    Raises:
        DataError: on every rank, if there are no examples.
    """
    all_samples = [
        Sample(i, i // settings.per_row, len(e.prompt), len(e.answer), e.truncated, len(e.images))
        for i, e in enumerate(encoded)
    ]
    limit, when = settings.assign.config.rollout.max_prompt_tokens, f"step {rows.step}"
    count_dropped(place, limit, all_samples, len(rows.rows), when, settings.assign.data_set)
    samples = assign_groups(settings.assign, all_samples, together=settings.per_row, step=rows.step)
    mine = samples.owned_by(place.name, place.index)
    device = place.device
    tokens = [torch.tensor([*encoded[i].prompt, *encoded[i].answer], device=device) for i in mine]
    masks = [torch.tensor(encoded[i].mask, dtype=torch.uint8, device=device) for i in mine]
    columns = {TOKENS: tokens, MASK: masks}
    if settings.encoder.reads_images:
        columns[IMAGES] = [as_bytes(encoded[i].images) for i in mine]
    return samples, Columns(mine, columns)


def _num_same(place: Placement, rows: StepRows, encoded: Sequence[Example]) -> int:
    """Count, and warn of, pairs whose answers are the same tokens: nothing is learned from them."""
    pairs = zip(encoded[::2], encoded[1::2], strict=True)
    count = sum(chosen.answer == rejected.answer for chosen, rejected in pairs)
    if count and place.leads:
        _logger.warning(
            "step %s: both answers of %s of %s pairs are the same tokens, as the chat template "
            "writes them and rollout.max_response_tokens cuts them; nothing is learned from them",
            rows.step,
            count,
            len(encoded) // 2,
        )
    return count
