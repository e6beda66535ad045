"""Dynamic sampling (DAPO, arXiv 2503.14476, section 3.2): ask on until enough prompts tell
responses apart."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from verl_hpc.data.order import Order
from verl_hpc.generation.generate import generate
from verl_hpc.generation.rollout import Rollout
from verl_hpc.generation.rollout_metrics import STEPS_FAILED, TURNS_MAX, TURNS_MEAN
from verl_hpc.generation.score import ScoreSettings, score, tells_apart
from verl_hpc.generation.slots import GenerateSettings
from verl_hpc.step.batch import Columns, Sample, Samples, StepRows
from verl_hpc.step.operator import Metrics, operator
from verl_hpc.step.placement import Placement
from verl_hpc.step.scores import Scores

_logger = logging.getLogger(__name__)

_MOST_TIMES = 4
"""So many times the missing prompts are asked at most in a round."""


@dataclass(frozen=True)
class RefillSettings:
    """How prompts are answered and scored, and where others come from."""

    generate: GenerateSettings
    score: ScoreSettings
    order: Order
    rounds: int
    """Of others, at most."""


@dataclass(frozen=True)
class _Round:
    """Some prompts with their responses."""

    rows: StepRows
    samples: Samples
    columns: Columns
    scores: Scores
    turns: Metrics
    """Of `generate`, where responses have several turns."""

    def groups(self, mixed: bool) -> list[int]:
        """Of its prompts, those whose responses differ in score, or do not."""
        return [
            g for g, differ in tells_apart(self.samples, self.scores).items() if differ == mixed
        ]


@operator("asked", "responses", "sequences", "scores", shared=("asked", "responses", "scores"))
def generate_mixed(
    place: Placement, rollout: Rollout, settings: RefillSettings, rows: StepRows
) -> tuple[tuple[StepRows, Samples, Columns, Scores], Metrics]:
    """Answer and score prompts until as many as `rows` has have responses of different scores.

    A round asks for as many prompts as are missing, divided by the share that was mixed so far.
    After the last round prompts whose responses have one score fill the batch up: they count in the
    batch's size, and algorithm.drop_equal_groups leaves them out of training. What a round has too
    many is dropped.

    Returns:
        The rows that the samples answer, and behind which the next step begins; the samples; what
        this engine has of them; their scores. Metrics of scores are of all responses.

    Raises:
        As `generate` and `score`.
    """
    wanted = len(rows.rows)
    done = [_ask(place, rollout, settings, rows, 0)]
    for number in range(1, settings.rounds + 1):
        mixed = sum(len(found.groups(mixed=True)) for found in done)
        if mixed >= wanted:
            break
        more = _next_rows(settings.order, done, wanted - mixed, mixed)
        done.append(_ask(place, rollout, settings, more, number))
    chosen = [(found, group) for found in done for group in found.groups(mixed=True)]
    num_mixed = len(chosen)
    chosen += [(found, group) for found in done for group in found.groups(mixed=False)]
    if num_mixed < wanted and place.leads:
        _logger.warning(
            "step %d: %d of %d prompts have responses of different scores after %d rounds; the "
            "others are not trained on (batch.refill_rounds)",
            rows.step, num_mixed, wanted, len(done),
        )  # fmt: skip
    metrics = _metrics(done, min(num_mixed, wanted))
    return _joined(place, done, chosen[:wanted]), metrics


def _ask(
    place: Placement, rollout: Rollout, settings: RefillSettings, rows: StepRows, number: int
) -> _Round:
    purpose = f"{settings.generate.purpose}/{number}" if number else settings.generate.purpose
    asking = replace(settings.generate, purpose=purpose)
    (samples, columns), turns = generate(place, rollout, asking, rows)
    if not len(samples):
        return _Round(rows, samples, columns, Scores([]), turns)
    scores, _ = score(place, settings.score, rows, samples, columns)
    return _Round(rows, samples, columns, scores, turns)


def _next_rows(order: Order, done: Sequence[_Round], missing: int, mixed: int) -> StepRows:
    asked = sum(len(found.rows.rows) for found in done)
    share = max(mixed / asked, 1 / _MOST_TIMES)
    last = done[-1].rows
    assert last.behind is not None
    rows, behind = order.take(last.behind, math.ceil(missing / share))
    return StepRows(last.step, rows, behind=behind)


def _joined(
    place: Placement, done: Sequence[_Round], chosen: Sequence[tuple[_Round, int]]
) -> tuple[StepRows, Samples, Columns, Scores]:
    """The chosen prompts of all rounds as one batch, whose groups are numbered anew."""
    rows: list[int] = []
    samples: list[Sample] = []
    owners: list[int] = []
    values: list[float] = []
    per_token: dict[int, Mapping[int, float]] = {}
    mine: list[tuple[int, dict[str, torch.Tensor]]] = []
    for number, (found, group) in enumerate(chosen):
        rows.append(found.rows.rows[group])
        of_position = {position: row for row, position in enumerate(found.columns.positions)}
        for position, sample in enumerate(found.samples):
            if sample.group != group:
                continue
            if position in of_position:
                row = of_position[position]
                tensors = {name: column[row] for name, column in found.columns.values.items()}
                mine.append((len(samples), tensors))
            owners.append(found.samples.owners[place.name][position])
            if position in found.scores.per_token:
                per_token[len(samples)] = found.scores.per_token[position]
            values.append(found.scores.values[position])
            samples.append(replace(sample, index=len(samples), group=number))
    names = done[0].columns.values
    columns = {name: [tensors[name] for _, tensors in mine] for name in names}
    first, last = done[0].rows, done[-1].rows
    return (
        StepRows(first.step, rows, behind=last.behind),
        Samples(tuple(samples), {place.name: owners}),
        Columns([position for position, _ in mine], columns, done[0].columns.widths),
        Scores(values, sum(found.scores.num_failed for found in done), per_token=per_token),
    )


def _metrics(done: Sequence[_Round], num_mixed: int) -> dict[str, float]:
    """Of all responses that were scored, and of the rounds."""
    values = [value for found in done for value in found.scores.values]
    failed = sum(found.scores.num_failed for found in done)
    extra: dict[str, float] = {}
    for found in done:
        for name, mean in (found.scores.extra or {}).items():
            share = len(found.scores.values) / len(values)
            extra[name] = extra.get(name, 0.0) + mean * share
    metrics = Scores(values, failed, extra).metrics if values else {}
    metrics |= _turns([found.turns for found in done], [len(found.samples) for found in done])
    return metrics | {
        "batch/rounds": float(len(done)),
        "batch/prompts_asked": float(sum(len(found.rows.rows) for found in done)),
        "batch/mixed_prompts": float(num_mixed),
    }


def _turns(rounds: Sequence[Metrics], sizes: Sequence[int]) -> dict[str, float]:
    """Of all rounds of so many responses together."""
    if not rounds[0]:
        return {}
    total = sum(of_one[TURNS_MEAN] * size for of_one, size in zip(rounds, sizes, strict=True))
    return {
        TURNS_MEAN: total / max(sum(sizes), 1),
        TURNS_MAX: max(of_one[TURNS_MAX] for of_one in rounds),
        STEPS_FAILED: sum(of_one[STEPS_FAILED] for of_one in rounds),
    }
