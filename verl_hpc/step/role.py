"""A model of the run: what it is, where it is, and the engine that computes it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from verl_hpc.config.roles import RoleSettings
from verl_hpc.engines.protocol import (
    NOTHING_MORE,
    InferenceEngine,
    TokenOutputs,
    TrainingEngine,
    Wanted,
)
from verl_hpc.errors import FlowError
from verl_hpc.layout.architecture import Architecture
from verl_hpc.layout.megatron import TrainLayout
from verl_hpc.layout.shard_map import ShardMap
from verl_hpc.step.placement import Placement


@dataclass
class Role:
    """A model of the run, as every rank knows it; its engine is on the ranks of its placement."""

    name: str
    settings: RoleSettings
    place: Placement
    arch: Architecture
    layout: TrainLayout
    shard_map: ShardMap
    """Of all its ranks."""
    trained_map: ShardMap
    """The same of what is trained and saved: adapters, where it has some."""
    training: TrainingEngine | None = None
    """Its own engine; None elsewhere, and where it shares another role's."""
    shared: InferenceEngine | None = None
    """What computes it where it shares another role's engine."""
    pad_token: int | None = None
    """Of a score: it is read at the last token that is not this one."""

    @property
    def dtype(self) -> torch.dtype:
        """Of the parameters that its ranks keep."""
        found: torch.dtype = getattr(torch, next(iter(self.shard_map.tensors.values())).dtype)
        return found

    @property
    def frozen(self) -> set[str]:
        """Logical tensors that stay as they are while it is trained: all but adapters and a new
        head, where it has some."""
        return self.shard_map.tensors.keys() - self.trained_map.tensors.keys()

    @property
    def engine(self) -> InferenceEngine:
        """Computes without gradients."""
        found = self.shared or self.training
        assert found is not None, f"{self.name} is not on rank {self.place.rank}"
        return found

    @property
    def trained(self) -> TrainingEngine:
        """Computes with gradients, and has an optimizer.

        Raises:
            FlowError: it has none.
        """
        if self.shared is not None or (self.training and not self.training.is_trainable):
            raise self.place.alike(
                FlowError(
                    f"roles.{self.name}: an operator trains this role, which has no optimizer; set "
                    f"roles.{self.name}.trainable: true"
                )
            )
        assert self.training is not None, f"{self.name} is not on rank {self.place.rank}"
        return self.training


class FirstWeights:
    """Another role's engine with the weights that it had when this was made.

    They are kept in host memory and exchanged for each pass: a second model would cost its
    parameters' device memory for the whole run, an exchange costs two or three copies a step.
    """

    def __init__(self, engine: TrainingEngine) -> None:
        self._engine = engine
        self._first = engine.host_copy()

    def infer(
        self,
        sequences: Sequence[torch.Tensor],
        temperature: float = 1.0,
        wanted: Wanted = NOTHING_MORE,
    ) -> list[TokenOutputs]:
        """See `InferenceEngine.infer`; the engine's own weights come back bit for bit."""
        with self._engine.exchanged(self._first):
            return self._engine.infer(sequences, temperature, wanted)


class WithoutAdapters:
    """Another role's engine as it was before its adapters were trained: they add nothing then, so
    that it takes no memory and no copies to leave them out."""

    def __init__(self, engine: TrainingEngine) -> None:
        self._engine = engine

    def infer(
        self,
        sequences: Sequence[torch.Tensor],
        temperature: float = 1.0,
        wanted: Wanted = NOTHING_MORE,
    ) -> list[TokenOutputs]:
        """See `InferenceEngine.infer`."""
        with self._engine.without_adapters():
            return self._engine.infer(sequences, temperature, wanted)
