"""What training engines over a layout of ranks have in common: passes in micro-batches, updates."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch
import torch.distributed as dist

from verl_hpc.engines.guarded_step import GuardedStep, Steps
from verl_hpc.engines.protocol import (
    NOTHING_MORE,
    STATE_KINDS,
    HostCopy,
    Loss,
    OnOutputs,
    OutputOptions,
    Part,
    Sums,
    TokenOutputs,
    state_specs,
)
from verl_hpc.engines.shared.groups import LayoutGroups
from verl_hpc.engines.shared.micro_batches import Plan, Planner
from verl_hpc.engines.shared.offload import HostStore
from verl_hpc.engines.shared.outputs import Outputs, sum_metrics
from verl_hpc.layout.architecture import Architecture
from verl_hpc.layout.box import Box, View
from verl_hpc.layout.shard_map import Region, ShardMap


class LayoutOptimizer(Steps, Protocol):
    """What `LayoutEngine` needs of an optimizer."""

    @property
    def num_steps(self) -> int:
        """Updates made so far."""

    def state_tensors(self) -> dict[str, torch.Tensor]:
        """Return master weights and moments by '<kind>/<local name>', in the optimizer's own
        memory; moments that do not exist yet are created as zeros."""

    def owned(self, region: Region) -> list[tuple[Box, View]]:
        """Return the boxes of a region of the weights whose state this rank has, each with its view
        in the state of the region's parameter."""

    def restore(self, num_steps: int) -> None:
        """Continue after `num_steps` updates."""


class LayoutEngine:
    """Part of a `TrainingEngine` whose passes go through planned micro-batches."""

    optimizer: LayoutOptimizer | None
    arch: Architecture
    trained_map: ShardMap
    device: torch.device
    host: HostStore
    _planner: Planner
    _outputs: Outputs
    _groups: LayoutGroups
    _guard: GuardedStep

    @property
    def is_trainable(self) -> bool:
        return self.optimizer is not None

    def optimizer_tensors(self) -> dict[str, torch.Tensor]:
        assert self.optimizer is not None
        return self.optimizer.state_tensors()

    def optimizer_map(self, primary: bool = False) -> ShardMap:
        assert self.optimizer is not None
        rank, trained, buffers = dist.get_rank(), self.trained_map, self.arch.without_state
        held = self._primary_regions(rank) if primary else trained.held_by(rank)
        parts = [
            Region(
                f"{kind}/{region.tensor}",
                box,
                (rank,),
                View(f"{kind}/{view.name}", view.offset, view.strides),
            )
            for region in held
            if region.tensor not in buffers
            for kind in STATE_KINDS
            for box, view in self.optimizer.owned(region)
        ]
        moments = self.optimizer.settings.moments
        return ShardMap(state_specs(trained.tensors, moments, buffers), parts)

    @abstractmethod
    def _primary_regions(self, rank: int) -> Sequence[Region]:
        """Regions of this rank whose optimizer state it saves, so that every element is saved by
        one rank."""

    def counters(self) -> dict[str, int]:
        assert self.optimizer is not None
        return {"num_steps": self.optimizer.num_steps}

    def restore_counters(self, counters: Mapping[str, int]) -> None:
        assert self.optimizer is not None
        self.optimizer.restore(counters["num_steps"])

    def host_copy(self) -> HostCopy:
        return self.host.copy()

    def exchanged(self, values: HostCopy) -> AbstractContextManager[None]:
        return self.host.exchanged(values)

    def offload(self, part: Part, once: bool = False) -> int:
        return self.host.offload(part, once)

    def onload(self, part: Part) -> None:
        self.host.onload(part)

    @abstractmethod
    def _run(
        self,
        sequences: Sequence[torch.Tensor],
        plan: Plan,
        temperature: float,
        consume: Callable[..., Any],
        wanted: OutputOptions,
        trains: bool,
    ) -> list[Any]:
        """Run all micro-batches; return what `consume(indices, outputs)` gives for each, None for
        one without sequences. If it `trains`, `consume` is a loss, which is differentiated, and the
        results are its sums, with the loss itself."""

    @abstractmethod
    def _updating(self, sequences: Sequence[torch.Tensor]) -> AbstractContextManager[None]:
        """Prepare an update on sequences, and clean up behind it."""

    def infer(
        self,
        sequences: Sequence[torch.Tensor],
        temperature: float = 1.0,
        wanted: OutputOptions = NOTHING_MORE,
    ) -> list[TokenOutputs]:
        plan = self._planner.plan(sequences)

        def collect(indices: Sequence[int], outputs: list[TokenOutputs]) -> list[TokenOutputs]:
            del indices
            return outputs

        with torch.no_grad():
            of_micro_batches = self._run(sequences, plan, temperature, collect, wanted, False)
        return self._shared([part or [] for part in of_micro_batches], plan, sequences, wanted)

    def update(
        self,
        sequences: Sequence[torch.Tensor],
        loss: Loss,
        temperature: float = 1.0,
        together: int = 1,
        wanted: OutputOptions = NOTHING_MORE,
        seen: OnOutputs | None = None,
    ) -> dict[str, float]:
        assert self.optimizer is not None
        plan = self._planner.plan(sequences, together)
        kept: dict[tuple[int, ...], list[TokenOutputs]] = {}

        # Used only for `seen`: otherwise outputs are freed after each micro-batch.
        def keeping(
            indices: Sequence[int], outputs: Sequence[TokenOutputs]
        ) -> tuple[torch.Tensor, Sums]:
            kept[tuple(indices)] = [o.detached() for o in outputs]
            return loss(indices, outputs)

        consume = loss if seen is None else keeping
        with self._updating(sequences):
            sums = self._run(sequences, plan, temperature, consume, wanted, True)
            metrics = sum_metrics([part for part in sums if part is not None], self._groups)
            metrics |= self._routing(wanted)
            # Callers may still refuse the update here, as the optimizer has not stepped yet.
            if seen is not None:
                # Micro-batches without sequences have no outputs.
                cached = [kept.get(tuple(indices), []) for indices in plan.bins] if kept else []
                seen(self._shared(cached, plan, sequences, wanted))
            self.host.weights_changed()
            return metrics | self._guard.step(self.optimizer, metrics["loss"])

    def _routing(self, wanted: OutputOptions) -> dict[str, float]:
        """Return metrics of an update's routers, once all micro-batches are through."""
        del wanted
        return {}

    def _shared(
        self,
        outputs: Sequence[list[TokenOutputs]],
        plan: Plan,
        sequences: Sequence[torch.Tensor],
        wanted: OutputOptions,
    ) -> list[TokenOutputs]:
        """Return the last stage's outputs on every stage, in the caller's order."""
        lengths = [len(tokens) for tokens in sequences]
        return self._outputs.share(outputs, plan.bins, lengths, wanted, self.device)
