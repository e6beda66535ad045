"""Take the prompts whose responses are finished first (batch.spare_prompts)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from verl_hpc.generation.slots import GenerateSettings, Slot, SlotKey
from verl_hpc.rollout.protocol import Feed, FeedAround, Response
from verl_hpc.step.operators.assign import share
from verl_hpc.step.placement import Placement


class Taken:
    """The prompts of a step that an engine takes, in the order in which they were finished.

    Args:
        slots: the engine's slots of the step.
        known: responses that there are.
        wanted: most prompts to take.
    """

    def __init__(
        self, slots: Sequence[Slot], known: Mapping[SlotKey, Response], wanted: int
    ) -> None:
        self._missing = Counter({slot.group: 0 for slot in slots})
        self._missing.update(
            slot.group for slot in slots if slot.key not in known or not known[slot.key].is_finished
        )
        self._wanted = min(wanted, len(self._missing))
        self._finished = [group for group, num in self._missing.items() if not num]

    @property
    def is_complete(self) -> bool:
        return len(self._finished) >= self._wanted

    @property
    def groups(self) -> Collection[int]:
        return self._finished[: self._wanted]

    def add(self, group: int) -> None:
        """Count a response to a prompt as finished."""
        self._missing[group] -= 1
        if not self._missing[group]:
            self._finished.append(group)


class FinishedFirst(FeedAround):
    """A feed that ends the call once so many prompts of a step have all their responses.

    Args:
        feed: requests of slots.
        slots: slot of each request.
        step: the step.
        taken: counts its prompts.
    """

    def __init__(self, feed: Feed, slots: Sequence[Slot], step: int, taken: Taken) -> None:
        super().__init__(feed)
        self._slots, self._step, self._taken = slots, step, taken

    def ended(self, index: int, response: Response) -> None:
        super().ended(index, response)
        if response.is_finished and self._slots[index].step == self._step:
            self._taken.add(self._slots[index].group)

    def stops(self, asks: bool) -> bool:
        return super().stops(asks) or self._taken.is_complete


def open_taken(
    place: Placement,
    settings: GenerateSettings,
    slots: Sequence[Slot],
    known: Mapping[SlotKey, Response],
) -> Taken:
    """Return what counts the prompts of a step with spare ones.

    Args:
        slots: this engine's slots of the step.
        known: responses that there are.
    """
    size = settings.config.batch.size
    return Taken(slots, known, len(share(size, place.index, len(place.groups))))
