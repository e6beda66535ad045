"""Run one rank's engine: prefixes, turns, the prompt queue, and concurrent scoring."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import replace
from typing import Any

from verl_hpc.errors import NotFiniteError
from verl_hpc.generation.answers import Answer
from verl_hpc.generation.conversation import Asked, Conversations
from verl_hpc.generation.prompt_queue import EnginePrompts
from verl_hpc.generation.rollout import Rollout
from verl_hpc.generation.score import is_mine
from verl_hpc.generation.slots import GenerateSettings, Slot, response_seed
from verl_hpc.rollout.partial import VersionedResponse
from verl_hpc.rollout.protocol import NOT_FINITE, Response, never
from verl_hpc.step.batch import StepRows
from verl_hpc.step.placement import Placement


def responses_to(
    rollout: Rollout,
    settings: GenerateSettings,
    step: int,
    slots: Sequence[Slot],
    known: Mapping[tuple[int, int], VersionedResponse],
    on_finished: Callable[[int, Response], None] | None,
    supply: EnginePrompts | None,
) -> tuple[list[VersionedResponse | None], Sequence[str]]:
    """Generate this engine's responses (None if unfinished and not kept), and return them with the
    errors of environment steps."""
    begun = [known.get(slot.key) for slot in slots]
    lengths = [len(b.response.tokens) if b is not None else 0 for b in begun]
    with _conversations(rollout, settings, slots) as turns:
        responses = rollout.here.generate(
            [slot.prompt for slot in slots],
            settings.sampling,
            [
                response_seed(settings, slot, length)
                for slot, length in zip(slots, lengths, strict=True)
            ],
            rollout.preempted if settings.interruptible else never,
            turns=turns,
            on_finished=on_finished,
            more=_places(supply, slots) if supply is not None else None,
            **(_in_flight(step, slots, begun) if settings.tagged else {}),
        )
    failures, cut = (turns.failures, turns.cut) if turns is not None else ((), ())
    # Sums, in which anything that is not finite stays: there are as many log-probs as tokens.
    if not all(math.isfinite(sum(r.log_probs)) for r in responses if r is not None):
        raise NotFiniteError(NOT_FINITE)
    for i in cut:
        response = responses[i]
        assert response is not None, "a conversation that was cut has ended"
        responses[i] = replace(response, finish_reason="length")
    tagged = [
        None if r is None else _tagged(r, b, rollout.version)
        for r, b in zip(responses, begun, strict=True)
    ]
    return tagged, failures


def _in_flight(
    step: int, slots: Sequence[Slot], begun: Sequence[VersionedResponse | None]
) -> dict[str, Any]:
    """Return the arguments of `RolloutEngine.generate` for responses that may continue in later
    steps."""
    needed = {index for index, slot in enumerate(slots) if slot.step == step}
    return {
        "prefixes": [None if b is None or not b.response.tokens else b.response for b in begun],
        "keep_unfinished": True,
        "until": needed.issubset,
    }


def supply_of(
    place: Placement,
    rollout: Rollout,
    settings: GenerateSettings,
    rows: StepRows,
    slots: Sequence[Slot],
) -> EnginePrompts:
    """Return what this rank's engine takes from the queue; it gets all samples of a prompt, which
    share its prefix cache."""
    assert rollout.queue is not None
    at_a_time = place.control.merge(rollout.here.at_a_time, min)
    prompts = {slot.group: slot.prompt for slot in slots}
    num_prompts = math.ceil(at_a_time / settings.num_samples)
    return rollout.queue.deal(place, prompts, rows, num_prompts)


def _places(supply: EnginePrompts, slots: Sequence[Slot]) -> Callable[[], list[int]]:
    """Return `EnginePrompts.more`, converted from groups to indices of their slots."""
    places: dict[int, list[int]] = {}
    for i, slot in enumerate(slots):
        places.setdefault(slot.group, []).append(i)
    return lambda: [i for group in supply.more() for i in places[group]]


def scoring_ahead(
    place: Placement, settings: GenerateSettings, step: int, slots: Sequence[Slot]
) -> Callable[[int, Response], None] | None:
    """Return a callback that starts scoring a finished response; None if responses are scored after
    generation, as multi-turn ones are."""
    scoring = settings.scoring
    if scoring is None or scoring.ahead is None or settings.environments is not None:
        return None
    scoring.ahead.forget_before(step)

    def begin(index: int, response: Response) -> None:
        slot = slots[index]
        if is_mine(place, slot.index):
            truncated = response.finish_reason == "length"
            answer = Answer(slot.problem, response.tokens, response.sampled, truncated)
            scoring.begin(answer, slot.step)

    return begin


def _conversations(
    rollout: Rollout, settings: GenerateSettings, slots: Sequence[Slot]
) -> AbstractContextManager[Conversations | None]:
    """Open the conversations of this engine's responses; None for single-turn responses."""
    environment = settings.limits.environment
    if settings.environments is None or environment is None:
        return nullcontext()
    return closing(
        Conversations(
            environment,
            settings.environments,
            [Asked(slot.problem, settings.encoder.is_chat(slot.problem)) for slot in slots],
            settings.encoder,
            lambda index, length: response_seed(settings, slots[index], length),
            settings.sampling,
            rollout.replica_control,
        )
    )


def _tagged(response: Response, begun: VersionedResponse | None, version: int) -> VersionedResponse:
    before = begun.versions if begun is not None else ()
    return VersionedResponse(response, before + (version,) * (len(response.tokens) - len(before)))
