"""Single operators of supervised fine-tuning, called as a recipe calls them."""

from __future__ import annotations

from collections.abc import Sequence

from verl_hpc.step.batch import Columns, Samples, StepRows
from verl_hpc.step.operator import Metrics
from verl_hpc.step.operators.examples import examples
from verl_hpc.step.operators.update import update_sft
from verl_hpc.trainer.context import RunContext


def encode(run: RunContext, step: int, rows: Sequence[int]) -> tuple[Samples, Columns]:
    """Rows of the training data as examples."""
    settings = run.settings.examples
    found, _ = examples(run.roles["actor"].place, settings, StepRows(step, rows))
    return found


def update(run: RunContext, samples: Samples, sequences: Columns) -> Metrics:
    """One pass over examples."""
    actor = run.roles["actor"]
    _, metrics = update_sft(actor.place, actor, run.settings.steps(1.0), samples, sequences)
    return metrics
