"""Single operators of supervised fine-tuning, called as a recipe calls them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.mpi.recipe_runs import configure
from verl_hpc.config.run import RunConfig
from verl_hpc.step.batch import Columns, Samples, StepRows
from verl_hpc.step.operator import Metrics
from verl_hpc.step.operators.examples import examples
from verl_hpc.step.operators.update import update_sft
from verl_hpc.trainer.context import RunContext


def sft_config(
    name: str, directory: Path, model: Path, parallel: dict, /, **changes: Any
) -> RunConfig:
    """A run of supervised fine-tuning on sums; its name may be that of a test."""
    settings = {
        "recipe": "sft",
        "steps": 10,
        "directory": str(directory),
        "parallel": parallel,
        "optimizer": {"lr": 1e-3, "warmup_steps": 2},
        "batch": {"size": 8},
        "rollout": {"max_prompt_tokens": 128, "max_response_tokens": 16},
        "data": {"train": {"kind": "reasoning_gym", "task": "chain_sum", "size": 64}},
        "checkpoint": {},
    }
    return configure(name, model, directory, **settings | changes)


def encode(run: RunContext, step: int, rows: Sequence[int]) -> tuple[Samples, Columns]:
    """Rows of the training data as examples."""
    settings = run.settings.examples
    encoded, _ = examples(run.roles["actor"].place, settings, StepRows(step, rows))
    return encoded


def update(run: RunContext, samples: Samples, sequences: Columns) -> Metrics:
    """One pass over examples."""
    actor = run.roles["actor"]
    _, metrics = update_sft(actor.place, actor, run.settings.steps(1.0), samples, sequences)
    return metrics
