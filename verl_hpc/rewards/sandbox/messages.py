"""Messages between a rank and a keeper."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from verl_hpc.rewards.sandbox.containment import Interpreter
from verl_hpc.rewards.sandbox.keeper import Job
from verl_hpc.rewards.sandbox.limits import Limits, Result


@dataclass(frozen=True)
class Answer:
    """Answer of a keeper."""

    result: Result | None = None
    failure: str = ""
    """Why the program could not be run."""


def read_job(values: Mapping[str, Any]) -> Job:
    """Return the job of a mapping made by `asdict`."""
    limits, interpreter = Limits(**values["limits"]), Interpreter(**values["interpreter"])
    return Job(**{**values, "limits": limits, "interpreter": interpreter})


def read_answer(values: Mapping[str, Any]) -> Answer:
    """Return the answer of a mapping made by `asdict`."""
    result = values["result"]
    return Answer(None if result is None else Result(**result), values["failure"])
