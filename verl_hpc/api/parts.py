"""The parts of a step: the recipe `rl` without what somebody else has done."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any, Protocol

from verl_hpc.api.batch import Batch
from verl_hpc.config.run import RunConfig
from verl_hpc.flow import DataFlow
from verl_hpc.step.batch import StepRows
from verl_hpc.step.scores import Scores
from verl_hpc.trainer.context import RunContext
from verl_hpc.trainer.recipe import Recipe
from verl_hpc.trainer.recipes.rl import rl

_MADE = ("responses", "sequences", "scores")
"""Values of a step that are there before its update."""


class ConfigOf(Protocol):
    """A run's configuration."""

    def __call__(self, *, num_prompts: int) -> RunConfig:
        """With steps of so many prompts."""


class StepParts:
    """Rollout and update of a run, for steps of any number of prompts.

    Args:
        run: of one process.
        config_of: its configuration.
    """

    def __init__(self, run: RunContext, config_of: ConfigOf) -> None:
        self._run, self._config_of = run, config_of
        self._recipe = cache(self._make_recipe)
        self._recipe(1)  # makes the numbers of the run that a checkpoint fills

    def rollout(self, step: int, rows: Sequence[int]) -> dict[str, Any]:
        """`responses` and `sequences` of prompts, by their numbers."""
        recipe = self._recipe(len(rows))
        recipe.metrics.clear()
        rest = [op.name for op in recipe.operators if op.name != "rollout"]
        return recipe.without(*rest).compile().run(rows=StepRows(step, list(rows)))

    def update(
        self, step: int, batch: Batch, scores: Scores
    ) -> tuple[dict[str, Any], dict[str, float]]:
        """All values of an update by name, and its metrics."""
        samples = batch.samples
        num_prompts = len({sample.group for sample in samples})
        num_samples = self._run.config.rollout.num_samples
        recipe = self._recipe(max(num_prompts, len(batch) // num_samples))
        flow = recipe.of_step(step).without("rollout", "reward")
        flow.inputs = (*flow.inputs, *_MADE)
        # Not a recipe's own: nothing generates here, and models have the device.
        pipeline = DataFlow.compile(flow)
        recipe.metrics.clear()
        sequences = batch.columns(self._run.session.device)
        rows = StepRows(step, list(range(num_prompts)))
        values = pipeline.run(rows=rows, responses=samples, sequences=sequences, scores=scores)
        metrics = {**recipe.metrics, **scores.metrics}
        return values, {"loss": metrics["actor/loss"], **metrics}

    def _make_recipe(self, num_prompts: int) -> Recipe:
        """Of steps of so many prompts; they differ in their mini-batches alone."""
        return rl(replace(self._run, config=self._config_of(num_prompts=num_prompts)))
