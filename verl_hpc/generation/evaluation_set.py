"""Problems of an evaluation, and how answers to them are made and scored."""

from __future__ import annotations

from dataclasses import dataclass

from verl_hpc.generation.score import ScoreSettings
from verl_hpc.generation.slots import GenerateSettings


@dataclass(frozen=True)
class EvaluationSet:
    """What is answered, and how it is scored."""

    name: str
    setting: str
    """What errors call its problems."""
    num_prompts: int
    """The first so many rows are answered."""
    generate: GenerateSettings
    score: ScoreSettings
