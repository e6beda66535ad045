"""Optimizer steps that keep the weights if the loss or a gradient is not finite."""

from __future__ import annotations

import math
from typing import Protocol

from verl_hpc.config.model import OptimizerConfig
from verl_hpc.errors import TrainingError

MOST_SKIPPED = 10
"""Most consecutive updates that optimizer.on_nonfinite: skip may skip."""


class Steps(Protocol):
    """What `GuardedStep` needs of an optimizer."""

    settings: OptimizerConfig

    @property
    def learning_rate(self) -> float:
        """Learning rate of the next step."""

    def step(self) -> float:
        """Clip, update, advance the schedule; return the gradient norm before clipping.

        Raises:
            TrainingError: the gradient is not finite; the weights are as they were.
        """


class GuardedStep:
    """Guards the optimizer steps of one engine.

    Args:
        name: what messages call the model, such as critic.
    """

    def __init__(self, name: str) -> None:
        self._name, self._skipped = name, 0

    def step(self, optimizer: Steps, loss: float) -> dict[str, float]:
        """Update the weights if loss and gradient are finite; return lr, grad_norm and num_skipped.

        Args:
            loss: sum over all replicas, equal on every rank.

        Raises:
            TrainingError: loss or gradient is not finite, and optimizer.on_nonfinite is stop or too
                many updates in a row were skipped.
        """
        metrics = {"lr": optimizer.learning_rate}
        skips = optimizer.settings.on_nonfinite == "skip"
        try:
            if not math.isfinite(loss):
                raise TrainingError(
                    f"the {self._name}'s loss is {loss}; the weights were left as they were. Look "
                    "at the rewards and advantages of this step's batch"
                )
            metrics["grad_norm"] = optimizer.step()
            self._skipped = 0
        except TrainingError as error:
            # Loss and norm are the same on every rank, and so is what follows.
            if not skips:
                raise
            if self._skipped == MOST_SKIPPED:
                raise TrainingError(
                    f"{MOST_SKIPPED} updates in a row were skipped (optimizer.on_nonfinite: skip), "
                    f"and the next is no better: {error}"
                ) from None
            self._skipped += 1
            metrics["grad_norm"] = math.nan
        if skips:
            metrics["num_skipped"] = float(self._skipped > 0)
        return metrics


def refuse_norm(norm: float) -> None:
    """Raises: TrainingError: a gradient norm is not finite."""
    if not math.isfinite(norm):
        raise TrainingError(
            f"the gradient norm is {norm}; the weights were left as they were. Resume from "
            "the last checkpoint with a lower optimizer.lr, or look at the batch it met"
        )
