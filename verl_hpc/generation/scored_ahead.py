"""Score responses in separate processes as they finish, while others are being generated."""

from __future__ import annotations

from collections.abc import Sequence

from verl_hpc.generation.answers import Answer
from verl_hpc.generation.score import ScoreSettings, is_mine
from verl_hpc.generation.slots import Slot
from verl_hpc.rollout.protocol import Feed, FeedAround, Response
from verl_hpc.step.placement import Placement


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
