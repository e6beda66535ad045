"""Generate responses to prompts, each rollout engine its share."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from verl_hpc.errors import NotFiniteError
from verl_hpc.generation.answers import Answer
from verl_hpc.generation.conversation import Conversations, LiveConversations, turn_metrics
from verl_hpc.generation.finished_first import FinishedFirst, Taken, open_taken
from verl_hpc.generation.in_flight import InFlight, begun_before, lag_metrics, remember
from verl_hpc.generation.prompt_queue import EnginePrompts, FromQueue
from verl_hpc.generation.rollout import Rollout
from verl_hpc.generation.score import ScoreSettings, is_mine
from verl_hpc.generation.slots import GenerateSettings, Slot, SlotKey, response_seed, slots_of
from verl_hpc.rollout.partial import versioned
from verl_hpc.rollout.protocol import (
    NOT_BEGUN,
    NOT_FINITE,
    Episode,
    Feed,
    FeedAround,
    Request,
    Response,
    never,
)
from verl_hpc.runtime.stop import StepDropped
from verl_hpc.step.batch import (
    COLUMNS,
    EXPERTS,
    IMAGES,
    MASK,
    PROGRAM_REWARDS,
    ROLLOUT_LOG_PROBS,
    TOKENS,
    VERSIONS,
    Columns,
    Sample,
    Samples,
    StepRows,
    as_bytes,
)
from verl_hpc.step.operator import Metrics, operator
from verl_hpc.step.placement import Placement
from verl_hpc.step.sample_rows import sample_rows, samples_of

if TYPE_CHECKING:
    from verl_hpc.generation.programs import Programs


class ScoredAhead(FeedAround):
    """A feed whose finished responses are given to the rank's scoring processes at once.

    Args:
        feed: requests of slots.
        place: placement that generates and scores.
        scoring: starts scoring a response.
        slots: slot of each request.
    """

    def __init__(
        self, feed: Feed, place: Placement, scoring: ScoreSettings, slots: Sequence[Slot]
    ) -> None:
        super().__init__(feed)
        self._place, self._scoring, self._slots = place, scoring, slots

    def ended(self, index: int, response: Response) -> None:
        super().ended(index, response)
        slot = self._slots[index]
        if response.finish_reason != "unfinished" and is_mine(self._place, slot.index):
            truncated = response.finish_reason == "length"
            answer = Answer(slot.problem, response.tokens, response.sampled, truncated)
            self._scoring.begin(answer, slot.step)


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
    slots = place.control.together(partial(slots_of, place, settings, rows))
    prompts = _prompts(place, rollout, settings, rows, slots) if settings.steals else None
    kept = rollout.kept if settings.trains else None
    known = begun_before(rollout, settings, rows.step) if settings.ahead else {}
    if kept is not None:
        known = kept.take(rows, slots)
    current = [s for s in slots if s.step == rows.step]
    takes_some = settings.trains and settings.config.batch.spare_prompts
    taken = open_taken(place, settings, current, known) if takes_some else None
    missing = _missing(settings, rows, slots, known, taken)
    new, failures = place.control.together(
        partial(_answered, place, rollout, settings, rows, missing, known, prompts, taken)
    )
    # From here on `known` has every response of this engine, finished or not.
    known |= new
    if kept is not None:
        kept.remember(rows, {index: response for (_, index), response in known.items()})
    if prompts is not None:
        current = [s for s in current if s.group in prompts.taken]
    if taken is not None:
        late = [s for s in current if s.group not in taken.groups]
        current = [s for s in current if s.group in taken.groups]
        known = {key: known[key] for key in known.keys() - {s.key for s in late}}
        if rollout.live is not None:
            rollout.live.end(_keys(settings, late))
    complete = [(s, known[s.key]) for s in current if s.key in known and known[s.key].is_finished]
    # An engine that did not empty the queue, or has unfinished responses, was interrupted.
    ended_early = prompts is not None and not prompts.is_empty
    ended_early |= taken is not None and not taken.is_complete
    unfinished = ended_early or len(complete) < len(current)
    if settings.programs is not None:
        most = settings.programs.config.max_turns
        complete = [row for whole in complete for row in _rows(*whole, most)]
    mine = [_sample(slot, response) for slot, response in complete]
    samples = agree(place, mine, unfinished, settings.encoder.reads_images)
    if settings.ahead:
        remember(rollout, settings, rows, known)
    if prompts is not None and rollout.queue is not None:
        rollout.queue.learn(rows, samples)
    columns = _columns(place, settings, samples, complete)
    return (samples, columns), _metrics(place, settings, rows, samples, columns, failures)


def _missing(
    settings: GenerateSettings,
    rows: StepRows,
    slots: Sequence[Slot],
    known: Mapping[SlotKey, Response],
    taken: Taken | None,
) -> Sequence[Slot]:
    """Return the slots to work on. An engine begins nothing unless this step needs it, also after a
    start."""
    missing = [s for s in slots if s.key not in known or not known[s.key].is_finished]
    if taken is not None and taken.is_complete:
        return []
    return [] if settings.ahead and all(s.step > rows.step for s in missing) else missing


def _metrics(
    place: Placement,
    settings: GenerateSettings,
    rows: StepRows,
    samples: Samples,
    columns: Columns,
    failures: Sequence[str],
) -> dict[str, float]:
    metrics = lag_metrics(place, rows.step, columns) if settings.tagged else {}
    if settings.trains and settings.config.batch.spare_prompts:
        asked = len({sample.group for sample in samples})
        metrics["batch/prompts_dropped"] = float(len(rows.rows) - asked)
    if settings.programs or settings.environments:
        metrics |= turn_metrics(place, columns, failures)
    return metrics


def _sample(slot: Slot, response: Response) -> Sample:
    truncated = response.finish_reason == "length"
    lengths, image_bytes = (len(slot.prompt), len(response.tokens)), len(slot.image_bytes)
    return Sample(slot.index, slot.group, *lengths, truncated, image_bytes)


def _prompts(
    place: Placement,
    rollout: Rollout,
    settings: GenerateSettings,
    rows: StepRows,
    slots: Sequence[Slot],
) -> EnginePrompts:
    """Return what this rank's engine takes from the queue; it gets all samples of a prompt, which
    share its prefix cache."""
    assert rollout.queue is not None
    at_a_time = place.control.merge(_at_a_time(rollout, settings), min)
    prompts = {slot.group: slot.prompt for slot in slots}
    num_prompts = math.ceil(at_a_time / settings.num_samples)
    return rollout.queue.deal(place, prompts, rows, num_prompts)


def _at_a_time(rollout: Rollout, settings: GenerateSettings) -> int:
    """Return how many responses, or programs, an engine has under way."""
    assert rollout.engine is not None
    programs = settings.programs
    return rollout.engine.at_a_time if programs is None else programs.config.max_programs


def _answered(
    place: Placement,
    rollout: Rollout,
    settings: GenerateSettings,
    rows: StepRows,
    slots: Sequence[Slot],
    known: Mapping[SlotKey, Response],
    prompts: EnginePrompts | None,
    taken: Taken | None,
) -> tuple[dict[SlotKey, Response], Sequence[str]]:
    """Run this rank's engine on slots; return their responses, unfinished ones only if they stay in
    flight, and the errors of environment steps."""
    begun = [known.get(slot.key, NOT_BEGUN) for slot in slots]
    requests = [
        Request(s.prompt, response_seed(settings, s, len(b.tokens)), b, s.images)
        for s, b in zip(slots, begun, strict=True)
    ]
    assert rollout.engine is not None, f"rank {place.rank} does not generate"
    # Each feature is a feed around the others.
    feed = Feed(requests, rollout.preempted if settings.trains else never)
    if prompts is not None:
        groups = [slot.group for slot in slots]
        feed = FromQueue(feed, prompts, groups, _at_a_time(rollout, settings))
    if taken is not None:
        feed = FinishedFirst(feed, slots, rows.step, taken)
    elif settings.tagged:
        feed = InFlight(feed, {i for i, slot in enumerate(slots) if slot.step == rows.step})
    if (
        settings.scoring is not None
        and settings.scoring.ahead is not None
        and not settings.programs
    ):
        settings.scoring.ahead.forget_before(rows.step)
        feed = ScoredAhead(feed, place, settings.scoring, slots)
    failures: Sequence[str] = ()
    if settings.programs or settings.environments:
        around = _conversations if settings.programs is None else _programs
        with closing(around(feed, rollout, settings, slots)) as turns:
            rollout.engine.generate(turns, settings.sampling)
        failures = turns.failures
    else:
        rollout.engine.generate(feed, settings.sampling)
    # Sums, in which anything that is not finite stays: there are as many log-probs as tokens.
    if not all(math.isfinite(sum(response.log_probs)) for response in feed.responses):
        raise NotFiniteError(NOT_FINITE)
    responses = {
        slot.key: feed.responses[i]
        for i, slot in enumerate(slots)
        if settings.tagged or i in feed.finished
    }
    if settings.tagged:
        of_slots = zip(slots, begun, strict=True)
        responses = {s.key: versioned(responses[s.key], b, rollout.version) for s, b in of_slots}
    return responses, failures


def _conversations(
    feed: Feed, rollout: Rollout, settings: GenerateSettings, slots: Sequence[Slot]
) -> Conversations:
    environment = settings.config.rollout.environment
    assert settings.environments is not None and environment is not None
    live = None
    if settings.tagged:
        rollout.live = live = rollout.live or LiveConversations()
    return Conversations(
        feed,
        environment,
        settings.environments,
        [slot.problem for slot in slots],
        settings.encoder,
        lambda index, length: response_seed(settings, slots[index], length),
        settings.sampling,
        rollout.replica_control,
        keys=_keys(settings, slots),
        live=live,
    )


def _programs(
    feed: Feed, rollout: Rollout, settings: GenerateSettings, slots: Sequence[Slot]
) -> Programs:
    from verl_hpc.generation.programs import LivePrograms, Programs

    host, control = settings.programs, rollout.replica_control
    assert host is not None and control is not None
    live = None
    if settings.tagged:
        rollout.live = live = rollout.live or LivePrograms()
    return Programs(
        feed,
        host.config,
        host if control.rank == 0 else None,
        [slot.problem for slot in slots],
        lambda index, number: response_seed(settings, slots[index], number),
        control,
        settings.trains,
        version=rollout.version,
        keys=_keys(settings, slots),
        live=live,
    )


def _keys(settings: GenerateSettings, slots: Sequence[Slot]) -> Sequence[Hashable]:
    return [(settings.purpose, *slot.key) for slot in slots]


def _rows(slot: Slot, response: Response, most: int) -> list[tuple[Slot, Response]]:
    """Return the rows of a program's branches, each with the index of a slot of its own.

    Args:
        most: most branches of a program.
    """
    episode = response.episode
    assert episode is not None, "a program has ended"
    rows = []
    for number, branch in enumerate(episode.branches):
        index = slot.index * most + number
        here = replace(slot, index=index, prompt=branch.prompt)
        record = replace(episode.record, row=number) if episode.record is not None else None
        only = replace(branch.response, episode=Episode((branch,), episode.score, record))
        rows.append((here, only))
    return rows


def agree(
    place: Placement, mine: Sequence[Sample], unfinished: bool, with_images: bool = False
) -> Samples:
    """Gather all engines' samples with their owners, equal on every rank.

    Args:
        mine: samples of this rank's engine, in their order in the step.
        unfinished: whether this engine has unfinished responses.
        with_images: whether prompts may have images.

    Raises:
        StepDropped: on every rank, if an engine has unfinished responses.
    """
    if place.control.any(unfinished):
        raise StepDropped
    if len(place.groups) == 1:
        return Samples(tuple(mine), {place.name: [0] * len(mine)})
    rows, owners = place.gather_of_groups(sample_rows(mine, with_images))
    order = np.argsort(rows["index"])
    return Samples(tuple(samples_of(rows[order])), {place.name: owners[order].tolist()})


def _columns(
    place: Placement,
    settings: GenerateSettings,
    samples: Samples,
    complete: Sequence[tuple[Slot, Response]],
) -> Columns:
    """Build the columns of this engine's samples."""
    positions = samples.owned_by(place.name, place.index)
    by_index = {slot.index: (slot, response) for slot, response in complete}
    mine = [by_index[samples.samples[i].index] for i in positions]
    responses = [response for _, response in mine]
    numbers: dict[str, list[Sequence[Any]]] = {
        TOKENS: [(*slot.prompt, *response.tokens) for slot, response in mine],
        MASK: [response.sampled for response in responses],
        ROLLOUT_LOG_PROBS: [response.log_probs for response in responses],
    }
    widths = {}
    if settings.tagged:
        numbers[VERSIONS] = [response.versions for response in responses]
    columns = {
        name: [torch.tensor(row, dtype=COLUMNS[name].dtype, device=place.device) for row in rows]
        for name, rows in numbers.items()
    }
    if settings.programs is not None:
        columns[PROGRAM_REWARDS] = [_rewards(r).to(place.device) for r in responses]
    if settings.encoder.reads_images:
        columns[IMAGES] = [as_bytes(slot.image_bytes) for slot, _ in mine]
    if some := settings.some_experts:
        columns[EXPERTS] = [
            _expert_bytes(r.experts, some, len(slot.prompt) + len(r.tokens) - 1).to(place.device)
            for (slot, _), r in zip(mine, responses, strict=True)
        ]
        widths[EXPERTS] = len(some)
    records = {
        i: response.episode.record
        for i, response in zip(positions, responses, strict=True)
        if response.episode is not None and response.episode.record is not None
    }
    return Columns(positions, columns, widths, records)


def _rewards(response: Response) -> torch.Tensor:
    """Return what a program wrote of one branch, (T,) float64, whose sum is its score; the last
    token is NaN if it wrote none."""
    assert response.episode is not None
    (branch,), score = response.episode.branches, response.episode.score
    rewards = torch.zeros(len(response.tokens), dtype=torch.float64)
    for index, reward in branch.rewards.items():
        rewards[index] = reward
    rewards[-1] += math.nan if score is None else score - math.fsum(branch.rewards.values())
    return rewards


def _expert_bytes(experts: Any, some: bytes, count: int) -> torch.Tensor:
    """Convert a numpy array (tokens, layers, k) to (tokens, bytes) uint8.

    Args:
        experts: None if a program took no turn.
        some: bytes for each of `count` tokens then.
    """
    if experts is None:
        experts = np.tile(np.frombuffer(some, np.uint8), (count, 1))
    rows = np.ascontiguousarray(experts).view(np.uint8)
    return torch.tensor(rows.reshape(len(rows), -1))
