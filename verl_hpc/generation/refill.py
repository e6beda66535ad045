"""Dynamic sampling (DAPO, arXiv 2503.14476, section 3.2): sample further prompts until enough have
responses of different scores."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from verl_hpc.data.order import Order
from verl_hpc.generation.generate import generate
from verl_hpc.generation.rollout import Rollout
from verl_hpc.generation.score import ScoreSettings, score, tells_apart
from verl_hpc.generation.sessions import joined
from verl_hpc.generation.slots import GenerateSettings
from verl_hpc.rollout.record import SessionRecord
from verl_hpc.step.batch import Columns, Sample, Samples, Scores, StepRows
from verl_hpc.step.operator import Metrics, operator
from verl_hpc.step.placement import Placement

_logger = logging.getLogger(__name__)

_MOST_TIMES = 4
"""Most prompts of a round, as a multiple of the missing ones."""


@dataclass(frozen=True)
class RefillSettings:
    """How to answer and score prompts, and the order of further ones."""

    generate: GenerateSettings
    score: ScoreSettings
    order: Order
    rounds: int
    """Most rounds of further prompts."""


@dataclass(frozen=True)
class _Round:
    """The prompts of one round, with their responses and scores."""

    rows: StepRows
    samples: Samples
    columns: Columns
    scores: Scores
    turns: Metrics
    """Metrics of `generate`: turns of multi-turn responses."""

    def groups(self, mixed: bool) -> list[int]:
        """Return the prompts whose responses differ in score (mixed), or do not."""
        return [
            g for g, differ in tells_apart(self.samples, self.scores).items() if differ == mixed
        ]


@operator("asked", "responses", "sequences", "scores", shared=("asked", "responses", "scores"))
def generate_mixed(
    place: Placement, rollout: Rollout, settings: RefillSettings, rows: StepRows
) -> tuple[tuple[StepRows, Samples, Columns, Scores], Metrics]:
    """Answer and score prompts until len(rows) of them have responses of different scores.

    A round takes as many prompts as are missing, divided by the share that was mixed so far. After
    the last round prompts whose responses have equal scores fill up the batch: they count towards
    its size, and algorithm.drop_equal_groups excludes them from training. Surplus prompts are
    dropped.

    Returns:
        The rows of the samples, with the position after them; the samples; this engine's columns;
        their scores. Score metrics cover all responses.

    Raises:
        See `generate` and `score`.
    """
    wanted = len(rows.rows)
    done = [_ask(place, rollout, settings, rows, 0)]
    for number in range(1, settings.rounds + 1):
        # The share of mixed prompts so far decides how many prompts to ask for next.
        mixed = sum(len(part.groups(mixed=True)) for part in done)
        if mixed >= wanted:
            break
        more = _next_rows(settings.order, done, wanted - mixed, mixed)
        done.append(_ask(place, rollout, settings, more, number))
    chosen = [(part, group) for part in done for group in part.groups(mixed=True)]
    num_mixed = len(chosen)
    chosen += [(part, group) for part in done for group in part.groups(mixed=False)]
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
    asked = sum(len(part.rows.rows) for part in done)
    share = max(mixed / asked, 1 / _MOST_TIMES)
    last = done[-1].rows
    assert last.behind is not None
    rows, behind = order.take(last.behind, math.ceil(missing / share))
    return StepRows(last.step, rows, behind=behind, task=last.task)


def _joined(
    place: Placement, done: Sequence[_Round], chosen: Sequence[tuple[_Round, int]]
) -> tuple[StepRows, Samples, Columns, Scores]:
    """Join the chosen prompts of all rounds to one batch, renumbering groups."""
    rows: list[int] = []
    samples: list[Sample] = []
    owners: list[int] = []
    values: list[float] = []
    per_token: dict[int, Mapping[int, float]] = {}
    mine: list[tuple[int, dict[str, torch.Tensor]]] = []
    records: dict[int, SessionRecord] = {}
    for number, (part, group) in enumerate(chosen):
        rows.append(part.rows.rows[group])
        # Facts are known for all samples, columns only for those of this rank's engine.
        of_position = {position: row for row, position in enumerate(part.columns.positions)}
        for position, sample in enumerate(part.samples):
            if sample.group != group:
                continue
            if position in of_position:
                row = of_position[position]
                tensors = {name: column[row] for name, column in part.columns.values.items()}
                mine.append((len(samples), tensors))
            if position in part.columns.records:
                records[len(samples)] = part.columns.records[position]
            owners.append(part.samples.owners[place.name][position])
            if position in part.scores.per_token:
                per_token[len(samples)] = part.scores.per_token[position]
            values.append(part.scores.values[position])
            samples.append(replace(sample, index=len(samples), group=number))
    names = done[0].columns.values
    columns = {name: [tensors[name] for _, tensors in mine] for name in names}
    first, last = done[0].rows, done[-1].rows
    return (
        StepRows(first.step, rows, behind=last.behind, task=first.task),
        Samples(tuple(samples), {place.name: owners}),
        Columns([position for position, _ in mine], columns, done[0].columns.widths, records),
        Scores(values, sum(part.scores.num_failed for part in done), per_token=per_token),
    )


def _metrics(done: Sequence[_Round], num_mixed: int) -> dict[str, float]:
    """Return metrics of all scored responses, and of the rounds."""
    values = [value for part in done for value in part.scores.values]
    failed = sum(part.scores.num_failed for part in done)
    details = [of_one for part in done for of_one in part.scores.details]
    metrics = Scores(values, failed, details).metrics if values else {}
    metrics |= joined([part.turns for part in done], [len(part.samples) for part in done])
    return metrics | {
        "batch/rounds": float(len(done)),
        "batch/prompts_asked": float(sum(len(part.rows.rows) for part in done)),
        "batch/mixed_prompts": float(num_mixed),
    }
