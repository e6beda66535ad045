"""Problems of an evaluation, and how to generate and score answers to them."""

from __future__ import annotations

from dataclasses import dataclass

from verl_hpc.generation.score import ScoreSettings
from verl_hpc.generation.slots import GenerateSettings


@dataclass(frozen=True)
class EvaluationSet:
    """One set of held-out problems, with its generation and scoring settings."""

    name: str
    setting: str
    """Settings key of its problems, for errors."""
    num_prompts: int
    """Number of rows to answer, from the first."""
    generate: GenerateSettings
    score: ScoreSettings
