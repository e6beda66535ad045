"""Megatron-core as a training engine: weights, passes, updates."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from megatron.core.distributed import finalize_model_grads

from verl_hpc.config.lora import LoraConfig
from verl_hpc.config.model import ModelConfig, OptimizerConfig, ParallelConfig
from verl_hpc.engines.guarded_step import GuardedStep
from verl_hpc.engines.megatron.build import (
    build_chunks,
    engine_shard_map,
    transformer_config,
)
from verl_hpc.engines.megatron.lora import Adapters
from verl_hpc.engines.megatron.offload import HostStore, memory_of
from verl_hpc.engines.megatron.optimizer import Optimizer, wrap_data_parallel
from verl_hpc.engines.megatron.outputs import Outputs, sum_metrics
from verl_hpc.engines.megatron.parallel import LayoutGroups
from verl_hpc.engines.megatron.passes import Passes
from verl_hpc.engines.megatron.precision import check_offload, choose_backend
from verl_hpc.engines.megatron.routers import Routers
from verl_hpc.engines.protocol import (
    NOTHING_MORE,
    Head,
    HostCopy,
    Loss,
    Part,
    Seen,
    Sums,
    TokenOutputs,
    Wanted,
)
from verl_hpc.layout.adapters import AdapterShape, local_adapters, trained_map
from verl_hpc.layout.architecture import Architecture
from verl_hpc.layout.heads import HEAD_TENSORS
from verl_hpc.layout.live import check_parameters
from verl_hpc.layout.megatron import is_expert
from verl_hpc.layout.shard_map import Region, ShardMap, union
from verl_hpc.layout.writers import primary_regions

# Blockwise FP8 scales 128 tokens together; the other recipes need multiples of 8 to 32.
_FP8_ROW_MULTIPLE = 128


class MegatronEngine:
    """One model on one training layout (`TrainingEngine`).

    Raises:
        ClusterError: FP8 or offloading that this rank cannot do.
        LayoutError, ModelError: sizes or a family that cannot be built.
    """

    def __init__(
        self,
        arch: Architecture,
        groups: LayoutGroups,
        model: ModelConfig,
        parallel: ParallelConfig,
        *,
        head: Head,
        optimizer: OptimizerConfig | None,
        max_tokens: int,
        name: str,
        lora: LoraConfig | None = None,
    ) -> None:
        assert lora is None or optimizer is not None, "adapters are there to be trained"
        self.arch, self.layout, self.head = arch, groups.layout, head
        self.name = name
        self.dtype: torch.dtype = getattr(torch, model.dtype)
        self.shard_map = engine_shard_map(arch, groups.layout, model, head)
        self.trained_map = trained_map(arch, self.shard_map, head, lora)
        self._groups = groups
        self._guard = GuardedStep(name)
        backend = choose_backend(model)
        check_offload(parallel)
        with groups.entered():
            self._config = transformer_config(
                arch,
                groups.layout,
                dtype=self.dtype,
                parallel=parallel,
                fp8=model.fp8,
                backend=backend,
            )
            chunks = build_chunks(self._config, arch, groups, backend=backend, head=head)
            # Not before: with more ranks than key/value heads layers copy the settings deeply.
            self._config.finalize_model_grads_func = self._sum_gradients
            self.adapters = self._add_adapters(chunks, lora) if lora is not None else None
            self._mark_sharded(chunks)
            # Without an optimizer (a reference model) there is nothing to reduce or to shard.
            self._chunks = wrap_data_parallel(self._config, chunks) if optimizer else chunks
            named = list(_named_parameters(self._chunks))
            self.weights: Mapping[str, torch.Tensor] = {
                name: parameter.detach() for name, parameter in named
            }
            self.optimizer = (
                self._build_optimizer(optimizer, {p: n for n, p in named}) if optimizer else None
            )
        self._routers = (
            Routers(chunks, self._config, model.router, groups)
            if arch.is_moe and optimizer
            else None
        )
        memory = memory_of(self._chunks, self.optimizer)
        self.host = HostStore(memory, only_trained=lora is not None)
        self._outputs = Outputs(head, arch.vocab_size, groups)
        self._passes = Passes(
            self._config,
            self._chunks,
            self._outputs,
            groups,
            backend=backend,
            max_tokens=max_tokens,
            row_multiple=(self.layout.tp if parallel.sequence_parallel else 1)
            * (_FP8_ROW_MULTIPLE if model.fp8 else 1),
            offloads_activations=parallel.offload_activations,
        )

    def _build_optimizer(
        self, settings: OptimizerConfig, names: Mapping[torch.nn.Parameter, str]
    ) -> Optimizer:
        # Gradients are sent when the last micro-batch is through, not while they still grow.
        no_sync = [chunk.no_sync for chunk in self._chunks]
        self._config.no_sync_func = no_sync if len(no_sync) > 1 else no_sync[0]
        return Optimizer(settings, self._chunks, names, self.dtype, self._groups.everyone)

    # ---------------------------------------------------------------- weights

    def _add_adapters(self, chunks: Sequence[torch.nn.Module], lora: LoraConfig) -> Adapters:
        shape = AdapterShape.of(lora)
        return Adapters(
            self._config,
            chunks,
            local_adapters(self.arch, self.shard_map, shape, dist.get_rank()),
            lora.rank,
            lora.scale,
            self._groups.tp,
            trains=["output_layer.weight"] if self.head in HEAD_TENSORS else [],
        )

    def _mark_sharded(self, chunks: Sequence[torch.nn.Module]) -> None:
        """Mark what is split over tensor-parallel ranks, for the gradient norm to count it whole.

        Megatron-core does so only when it initialises weights itself.
        """
        rank = dist.get_rank()
        here = self.layout.grid.coordinates(rank)
        peers = {self.layout.grid.rank(**(here | {"tp": index})) for index in range(self.layout.tp)}
        parameters = dict(_named_parameters(chunks))
        everything = self.shard_map
        if self.adapters is not None:
            everything = union([everything, self.trained_map.restricted_to(self._own_tensors)])
        check_parameters(everything, rank, parameters, "Megatron-core")
        for region in everything.held_by(rank):
            sharded = not peers.issubset(region.holders)
            parameters[region.view.name].tensor_model_parallel = sharded
        apart = (self.layout.ep, self.layout.etp) != (1, self.layout.tp)
        for name, parameter in parameters.items():
            if is_expert(name):
                # Of their replicas every one counts its own; Megatron-core marks them only where
                # ep > 1, and else would add up the gradients of tensor-parallel ranks nowhere.
                parameter.tensor_model_parallel = True
                parameter.allreduce = not apart
        if self.adapters is not None:
            self.adapters.mark_experts()

    @property
    def _own_tensors(self) -> list[str]:
        return [name for name in self.trained_map.tensors if name not in self.shard_map.tensors]

    @property
    def is_trainable(self) -> bool:
        return self.optimizer is not None

    def optimizer_map(self, primary: bool = False) -> ShardMap:
        assert self.optimizer is not None
        rank = dist.get_rank()
        regions = self._primary_regions(rank) if primary else self.trained_map.held_by(rank)
        return self.optimizer.state_map(self.trained_map.tensors, regions, rank)

    def _primary_regions(self, rank: int) -> list[Region]:
        """Experts have replicas of their own, over which their state is sharded."""
        layout = self.layout
        return [
            region
            for of_experts, grid, axis in (
                (False, layout.grid, "dp"),
                (True, layout.expert_grid, "edp"),
            )
            for region in primary_regions(self.trained_map, grid, rank, axis)
            if is_expert(region.view.name) is of_experts
        ]

    def optimizer_tensors(self) -> dict[str, torch.Tensor]:
        assert self.optimizer is not None
        return self.optimizer.state_tensors()

    def counters(self) -> dict[str, int]:
        assert self.optimizer is not None
        return self.optimizer.counters()

    def restore_counters(self, counters: Mapping[str, int]) -> None:
        assert self.optimizer is not None
        self.optimizer.restore_counters(counters)

    def weights_changed(self) -> None:
        self.host.weights_changed()
        if self.optimizer is not None:
            with self._groups.entered():
                self.optimizer.take_weights()

    @property
    def adapted(self) -> Mapping[str, torch.Tensor]:
        if self.adapters is None:
            return {}
        return {name: self.weights[name] for name in self.adapters.by_weight}

    def merge(self, name: str, to: torch.Tensor) -> None:
        assert self.adapters is not None
        with torch.no_grad():
            self.adapters.by_weight[name].merge(self.weights[name], to)

    def without_adapters(self) -> AbstractContextManager[None]:
        return self.adapters.disabled() if self.adapters is not None else nullcontext()

    def host_copy(self) -> HostCopy:
        return self.host.copy()

    def exchanged(self, values: HostCopy) -> AbstractContextManager[None]:
        return self.host.exchanged(values)

    def offload(self, part: Part, once: bool = False) -> int:
        return self.host.offload(part, once)

    def onload(self, part: Part) -> None:
        self.host.onload(part)

    # ---------------------------------------------------------------- passes

    def infer(
        self,
        sequences: Sequence[torch.Tensor],
        temperature: float = 1.0,
        wanted: Wanted = NOTHING_MORE,
    ) -> list[TokenOutputs]:
        plan = self._passes.plan(sequences)

        def collect(indices: Sequence[int], outputs: list[TokenOutputs]) -> list[TokenOutputs]:
            del indices
            return outputs

        for chunk in self._chunks:
            chunk.eval()
        with torch.no_grad(), self._groups.entered():
            found = self._passes.run(
                sequences, plan, temperature, collect, forward_only=True, wanted=wanted
            )
        lengths = [len(s) for s in sequences]
        return self._outputs.share(found, plan.bins, lengths, wanted, self._passes.device)

    def update(
        self,
        sequences: Sequence[torch.Tensor],
        loss: Loss,
        temperature: float = 1.0,
        together: int = 1,
        wanted: Wanted = NOTHING_MORE,
        seen: Seen | None = None,
    ) -> dict[str, float]:
        assert self.optimizer is not None
        plan = self._passes.plan(sequences, together)
        kept: dict[tuple[int, ...], list[TokenOutputs]] = {}

        def keeping(
            indices: Sequence[int], outputs: Sequence[TokenOutputs]
        ) -> tuple[torch.Tensor, Sums]:
            kept[tuple(indices)] = [o.detached() for o in outputs]
            return loss(indices, outputs)

        with self._groups.entered():
            for chunk in self._chunks:
                chunk.train()
                chunk.zero_grad_buffer()
            self.optimizer.zero_grad()
            if self._routers is not None:
                self._routers.begin(sequences, self._passes.device)
            consume = keeping if seen is not None else loss
            found = self._passes.run(
                sequences, plan, temperature, consume, forward_only=False, wanted=wanted
            )
            metrics = sum_metrics([f for f in found if f is not None], self._groups)
            if self._routers is not None:
                metrics |= self._routers.end()
            if wanted.experts is not None:
                metrics["router_disagreement"] = self._passes.router_disagreement()
            if seen is not None:
                seen(self._shared(kept, plan.bins, sequences, wanted))
            self.host.weights_changed()
            return metrics | self._guard.step(self.optimizer, metrics["loss"])

    def _shared(
        self,
        kept: Mapping[tuple[int, ...], list[TokenOutputs]],
        bins: Sequence[Sequence[int]],
        sequences: Sequence[torch.Tensor],
        wanted: Wanted,
    ) -> list[TokenOutputs]:
        """Outputs of the last stage, by micro-batch, on every stage and in the caller's order."""
        # An interleaved pipeline may run through empty micro-batches, too, which give none.
        found = [kept.get(tuple(indices), []) for indices in bins] if kept else []
        lengths = [len(s) for s in sequences]
        return self._outputs.share(found, bins, lengths, wanted, self._passes.device)

    def _sum_gradients(self, model: list[Any], num_tokens: Any = None, **groups: Any) -> None:
        """Reduce gradients over replicas, stages and ranks; divide by nothing."""
        del num_tokens
        finalize_model_grads(model, None, **groups)
        if self.adapters is not None:
            self.adapters.sum_over_experts()


def _named_parameters(
    chunks: Sequence[torch.nn.Module],
) -> Iterator[tuple[str, torch.nn.Parameter]]:
    """Parameters by the local names of the shard map."""
    for index, chunk in enumerate(chunks):
        for name, parameter in chunk.named_parameters():
            yield f"chunk{index}.{name.replace('module.', '')}", parameter
