"""A model of the run, its placement, and its engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch

from verl_hpc.config.roles import RoleSettings
from verl_hpc.engines.protocol import (
    NOTHING_MORE,
    InferenceEngine,
    OutputOptions,
    TokenOutputs,
    TrainingEngine,
    state_specs,
)
from verl_hpc.errors import FlowError
from verl_hpc.layout.architecture import Architecture
from verl_hpc.layout.megatron import TrainLayout
from verl_hpc.layout.shard_map import ShardMap
from verl_hpc.step.placement import Placement


@dataclass
class Role:
    """A model of the run, known to every rank; only the ranks of its placement have its engine."""

    name: str
    settings: RoleSettings
    place: Placement
    arch: Architecture
    layout: TrainLayout
    shard_map: ShardMap
    """Map of the model's parameters over all its ranks."""
    trained_map: ShardMap
    """Map of the trained and saved tensors: adapters, if it has some, else all."""
    training: TrainingEngine | None = None
    """Its own engine; None on other ranks, and if it shares another role's."""
    shared: InferenceEngine | None = None
    """Engine that computes it through another role's, if it shares one."""
    pad_token: int | None = None
    """Pad token of a score model, which scores the last token that differs from it."""

    @cached_property
    def dtype(self) -> torch.dtype:
        """Element type of the parameters in memory."""
        found: torch.dtype = getattr(torch, next(iter(self.shard_map.tensors.values())).dtype)
        return found

    @property
    def state_map(self) -> ShardMap:
        """Tensors of its optimizer's state, without their places."""
        moments, buffers = self.settings.moments, self.arch.without_state
        return ShardMap(state_specs(self.trained_map.tensors, moments, buffers), ())

    @property
    def frozen(self) -> set[str]:
        """Logical tensors that training does not change: all except adapters and a new head, if it
        has adapters."""
        return self.shard_map.tensors.keys() - self.trained_map.tensors.keys()

    @property
    def engine(self) -> InferenceEngine:
        """Engine for passes without gradients."""
        engine = self.shared or self.training
        assert engine is not None, f"{self.name} is not on rank {self.place.rank}"
        return engine

    @property
    def trained(self) -> TrainingEngine:
        """Engine with gradients and an optimizer.

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


class InitialWeights:
    """Another role's engine, computing with the weights that it began with.

    A copy of them stays in host memory and is exchanged for each pass: a second model would take
    device memory for the whole run, an exchange costs two or three copies a step.

    Args:
        engine: the other role's.
        in_adapters: its adapters started at zero, so that leaving them out gives those weights, and
            costs neither memory nor copies.
    """

    def __init__(self, engine: TrainingEngine, in_adapters: bool = False) -> None:
        self._engine = engine
        self.copy = None if in_adapters else engine.host_copy()

    def infer(
        self,
        sequences: Sequence[torch.Tensor],
        temperature: float = 1.0,
        wanted: OutputOptions = NOTHING_MORE,
    ) -> list[TokenOutputs]:
        """See `InferenceEngine.infer`; the engine's own weights come back bit for bit."""
        engine, first = self._engine, self.copy
        with engine.without_adapters() if first is None else engine.exchanged(first):
            return engine.infer(sequences, temperature, wanted)
