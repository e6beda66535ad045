"""Keep finished responses over an interruption (rollout.on_interrupt = keep).

Only finished responses are kept, in the directory of the step whose weights generated them. A run
that resumes from another step, or with other rollout settings, generates them again.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from verl_hpc.checkpoint.responses import read_responses, write_responses
from verl_hpc.config.run import RunConfig
from verl_hpc.errors import CheckpointError
from verl_hpc.generation.slots import Slot, SlotKey
from verl_hpc.rollout.protocol import Response
from verl_hpc.runtime.control import Control
from verl_hpc.step.batch import StepRows

_logger = logging.getLogger(__name__)

_SPEED_AND_MEMORY = ("gpu_memory_utilization", "kv_cache_gib", "max_num_seqs", "enforce_eager")
"""Rollout settings that do not change what is generated."""


def rollout_key(config: RunConfig) -> str:
    """Return a key of the settings that decide how responses are generated, and from which data."""
    if config.tasks:
        keys = {name: rollout_key(task) for name, task in config.by_task.items()}
        return json.dumps(keys, sort_keys=True)
    facts = {
        "seed": config.seed,
        "rollout": config.rollout.model_dump(mode="json", exclude=set(_SPEED_AND_MEMORY)),
        "data": config.data.model_dump(mode="json"),
    }
    return json.dumps(facts, sort_keys=True)


@dataclass
class KeptResponses:
    """This rank's engine's finished responses of one step, by slot."""

    rollout: str = ""
    """See `rollout_key`."""
    key: str = ""
    by_slot: dict[int, Response] = field(default_factory=dict)

    def _key(self, rows: StepRows) -> str:
        """Return a key of a step's responses: equal keys give equal responses, up to rounding."""
        text = json.dumps([self.rollout, rows.task, rows.step, list(rows.rows)])
        return hashlib.sha256(text.encode()).hexdigest()

    def take(self, rows: StepRows, slots: Sequence[Slot]) -> dict[SlotKey, Response]:
        """Return the finished responses of a step's slots; none if they are another step's."""
        by_slot = self.by_slot if self._key(rows) == self.key else {}
        return {slot.key: by_slot[slot.index] for slot in slots if slot.index in by_slot}

    def remember(self, rows: StepRows, by_slot: Mapping[int, Response]) -> None:
        """Replace the stored responses by those of a step that an engine has finished."""
        self.key, self.by_slot = self._key(rows), dict(by_slot)

    def save(self, control: Control, step: Path, replica: int, leads: bool) -> None:
        """Write the responses into a step's directory, one rank per replica; every rank calls it.

        If writing fails, for instance on a full disk, the next start generates them again.
        """

        def write() -> None:
            write_responses(step, replica, self.key, self.by_slot)

        try:
            control.together(write if leads and self.by_slot else lambda: None)
        except CheckpointError as error:
            self._say(control, f"finished responses are dropped: {error}")

    def load(self, control: Control, step: Path) -> None:
        """Load the responses in a step's directory; every rank calls it.

        If one file is damaged all are dropped, on every rank.
        """

        def read() -> list[tuple[str, dict[int, Response]]]:
            return list(read_responses(step))

        try:
            parts = control.together(read)
        except CheckpointError as error:
            self._say(control, f"finished responses are dropped: {error}")
            return
        keys = {key for key, _ in parts}
        if len(keys) != 1:
            return
        (self.key,) = keys
        self.by_slot = {slot: r for _, responses in parts for slot, r in responses.items()}
        self._say(control, f"{len(self.by_slot)} responses were finished before the interruption")

    @staticmethod
    def _say(control: Control, text: str) -> None:
        if control.rank == 0:
            _logger.warning("%s", text)
