"""Declared data flows: `DataFlow`, `Operator` and what they compile to."""

from verl_hpc.flow.dataflow import DataFlow
from verl_hpc.flow.operator import EVERYWHERE, Operator
from verl_hpc.flow.pipeline import Move, Pipeline, Run

__all__ = ["EVERYWHERE", "DataFlow", "Move", "Operator", "Pipeline", "Run"]
