"""Declared data flows: `DataFlow`, `Operator` and what they compile to."""

from verl_hpc.flow.dataflow import DataFlow
from verl_hpc.flow.operator import EVERYWHERE, Operator
from verl_hpc.flow.pipeline import Move, Mover, Pipeline, Run, StepCancelled, Values

__all__ = [
    "EVERYWHERE",
    "DataFlow",
    "Move",
    "Mover",
    "Operator",
    "Pipeline",
    "Run",
    "StepCancelled",
    "Values",
]
