"""The reference policy: the actor's first weights, kept in host memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from verl_hpc.engines.protocol import TrainingEngine


class ReferenceWeights:
    """A host copy of an engine's weights, swapped in where reference log-probs are needed.

    A second model would cost its parameters' device memory for the whole run; a swap costs two
    copies a step.
    """

    def __init__(self, engine: TrainingEngine) -> None:
        self._engine = engine
        self._first = _host_copy(engine)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Inside, the engine computes with the reference weights; its own come back bit for bit."""
        own = _host_copy(self._engine)
        self._fill(self._first)
        try:
            yield
        finally:
            self._fill(own)

    def _fill(self, values: dict[str, torch.Tensor]) -> None:
        for name, tensor in self._engine.weights.items():
            tensor.copy_(values[name])


def _host_copy(engine: TrainingEngine) -> dict[str, torch.Tensor]:
    return {name: tensor.to("cpu", copy=True) for name, tensor in engine.weights.items()}
