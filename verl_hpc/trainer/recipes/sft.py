"""Supervised fine-tuning: imitate the data set's answers."""

from __future__ import annotations

from functools import partial

from verl_hpc.flow import DataFlow
from verl_hpc.trainer.operators.examples import examples
from verl_hpc.trainer.operators.update import imitate
from verl_hpc.trainer.workers import TRAIN, Workers


def sft(workers: Workers) -> DataFlow:
    """The flow of one step: encode examples, take an optimizer step on their answers."""
    flow = DataFlow("sft", inputs=("prompts",))
    flow.add(
        "examples",
        partial(examples, workers),
        inputs=("prompts",),
        outputs=("samples", "sequences"),
        placement=TRAIN,
        shared=("samples",),
    )
    flow.add(
        "update_actor",
        partial(imitate, workers),
        inputs=("samples", "sequences"),
        outputs=("actor_metrics",),
        placement=TRAIN,
        changes_state=True,
    )
    return flow
