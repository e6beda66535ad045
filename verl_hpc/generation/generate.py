"""Generate responses to prompts, each rollout engine its share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from verl_hpc.generation.kept import step_key
from verl_hpc.generation.responses import responses_to, scoring_ahead, supply_of
from verl_hpc.generation.rollout import Rollout
from verl_hpc.generation.rollout_metrics import lag_metrics, turn_metrics
from verl_hpc.generation.slots import GenerateSettings, slots_of
from verl_hpc.rollout.partial import ResponseId, VersionedResponse
from verl_hpc.runtime.stop import StepDropped
from verl_hpc.step.batch import (
    COLUMNS,
    EXPERTS,
    MASK,
    ROLLOUT_LOG_PROBS,
    TOKENS,
    VERSIONS,
    Columns,
    Sample,
    Samples,
    StepRows,
)
from verl_hpc.step.operator import Metrics, operator
from verl_hpc.step.placement import Placement
from verl_hpc.step.sample_rows import sample_rows, samples_of


@operator("responses", "sequences", shared=("responses",))
def generate(
    place: Placement, rollout: Rollout, settings: GenerateSettings, rows: StepRows
) -> tuple[tuple[Samples, Columns], Metrics]:
    """Answer every prompt `num_samples` times.

    Slot s answers prompt s // num_samples; engines take contiguous shares of the slots, so that the
    samples of a prompt mostly share an engine's prefix cache, or they take prompts from a queue
    (`settings.steals`). An overlong prompt is dropped, cut or an error, by rollout.overlong_prompt.
    Responses to prompts of upcoming steps are started together with this step's, and stay in flight
    when those are finished; they continue in the next call, under the weights that the engine then
    has. Responses of this and later steps that a checkpoint had are not generated again.

    Returns:
        All samples with the engines that have them, and this engine's columns of tokens, mask and
        log-probs.

    Raises:
        DataError: on every rank, if one rank met a malformed or overlong row.
        TrainingError: on every rank, if logits of one rank's model are not finite.
        StepDropped: on every rank, if the call is interruptible and a rank was preempted.
    """
    slots = place.together(lambda: slots_of(place, settings, rows))
    supply = supply_of(place, rollout, settings, rows, slots) if settings.steals else None
    key = step_key(settings.key, rows.step, rows.rows)
    known = _ahead(rollout, settings, rows.step) if settings.ahead else {}
    if settings.kept is not None and not settings.ahead:
        by_slot = settings.kept.take(key)
        known = {
            s.key: VersionedResponse(by_slot[s.index], ()) for s in slots if s.index in by_slot
        }
    missing = [s for s in slots if s.key not in known or not known[s.key].is_finished]
    begin = scoring_ahead(place, settings, rows.step, missing)
    if settings.ahead and all(slot.step > rows.step for slot in missing):
        missing = []  # an engine begins nothing unless this step needs it, also after a start
    generated, failures = place.together(
        lambda: responses_to(rollout, settings, rows.step, missing, known, begin, supply)
    )
    # From here on `known` has every response of this engine, finished or not.
    known |= {s.key: response for s, response in zip(missing, generated, strict=True) if response}
    if settings.kept is not None:
        finished = {index: tagged.response for (_, index), tagged in known.items()}
        settings.kept.remember(key, finished)
    current = [s for s in slots if s.step == rows.step]
    if supply is not None:
        current = [s for s in current if s.group in supply.taken]
    complete = [s for s in current if s.key in known and known[s.key].is_finished]
    mine = [
        Sample(s.index, s.group, len(s.prompt), len(r.tokens), r.finish_reason == "length")
        for s, r in ((s, known[s.key].response) for s in complete)
    ]
    # An engine that did not empty the queue, or has unfinished responses, was interrupted.
    ended_early = supply is not None and not supply.is_empty
    samples = agree(place, mine, ended_early or len(complete) < len(current))
    if settings.ahead:
        _remember(rollout, settings, rows, known)
    if supply is not None and rollout.queue is not None:
        rollout.queue.learn(rows, samples)
    answered = {s.index: (s.prompt, known[s.key]) for s in complete}
    columns = _columns(place, settings, samples, answered)
    metrics = lag_metrics(place, rows.step, columns) if settings.tagged else {}
    if settings.environments is not None:
        metrics |= turn_metrics(place, columns, failures)
    return (samples, columns), metrics


def _ahead(
    rollout: Rollout, settings: GenerateSettings, step: int
) -> dict[tuple[int, int], VersionedResponse]:
    """Return this engine's responses of a step and of later ones, by (step, slot)."""
    return {
        (which.step, which.slot): tagged
        for which, tagged in rollout.ahead.items()
        if which.purpose == settings.purpose and which.step >= step
    }


def _remember(
    rollout: Rollout,
    settings: GenerateSettings,
    rows: StepRows,
    known: Mapping[tuple[int, int], VersionedResponse],
) -> None:
    """Store the known responses for checkpoints until the step has trained."""
    count = len(rows.rows) * settings.num_samples
    others = {w: t for w, t in rollout.ahead.items() if w.purpose != settings.purpose}
    mine = {ResponseId(settings.purpose, *key, count): tagged for key, tagged in known.items()}
    rollout.ahead = others | mine


def agree(place: Placement, mine: Sequence[Sample], unfinished: bool) -> Samples:
    """Gather all engines' samples with their owners, equal on every rank.

    Args:
        mine: samples of this rank's engine, in their order in the step.
        unfinished: whether this engine has unfinished responses.

    Raises:
        StepDropped: on every rank, if an engine has unfinished responses.
    """
    if place.control.any(unfinished):
        raise StepDropped
    if len(place.groups) == 1:
        return Samples(tuple(mine), {place.name: [0] * len(mine)})
    rows, owners = place.gather_of_groups(sample_rows(mine))
    order = np.argsort(rows["index"])
    return Samples(tuple(samples_of(rows[order])), {place.name: owners[order].tolist()})


def _columns(
    place: Placement,
    settings: GenerateSettings,
    samples: Samples,
    by_slot: Mapping[int, tuple[Sequence[int], VersionedResponse]],
) -> Columns:
    """Build the columns of this engine's samples."""
    positions = samples.owned_by(place.name, place.index)
    mine = [by_slot[samples.samples[i].index] for i in positions]
    responses = [tagged.response for _, tagged in mine]
    numbers: dict[str, list[Sequence[Any]]] = {
        TOKENS: [(*prompt, *tagged.response.tokens) for prompt, tagged in mine],
        MASK: [response.sampled for response in responses],
        ROLLOUT_LOG_PROBS: [response.log_probs for response in responses],
    }
    widths = {}
    if settings.tagged:
        numbers[VERSIONS] = [tagged.versions for _, tagged in mine]
    columns = {
        name: [torch.tensor(row, dtype=COLUMNS[name].dtype, device=place.device) for row in rows]
        for name, rows in numbers.items()
    }
    if settings.routed_bytes:
        columns[EXPERTS] = [_as_bytes(r.experts).to(place.device) for r in responses]
        widths[EXPERTS] = settings.routed_bytes
    return Columns(positions, columns, widths)


def _as_bytes(experts: Any) -> torch.Tensor:
    """Convert a numpy array (tokens, layers, k) to (tokens, bytes) uint8."""
    rows = np.ascontiguousarray(experts).view(np.uint8)
    return torch.tensor(rows.reshape(len(rows), -1))
