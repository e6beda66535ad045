"""Megatron-core as a training engine: weights, passes, updates."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from megatron.core.distributed import finalize_model_grads

from verl_hpc.config.lora import LoraConfig
from verl_hpc.config.model import ModelConfig, OptimizerConfig, ParallelConfig
from verl_hpc.engines.guarded_step import GuardedStep
from verl_hpc.engines.megatron.build import (
    VOCAB_MULTIPLE,
    build_chunks,
    engine_shard_map,
    transformer_config,
)
from verl_hpc.engines.megatron.lora import Adapters
from verl_hpc.engines.megatron.optimizer import Optimizer, wrap_data_parallel
from verl_hpc.engines.megatron.parallel import MegatronGroups
from verl_hpc.engines.megatron.parameters import (
    mark_sharded,
    memory_of,
    named_biases,
    named_parameters,
    primary_regions_of,
    share_frozen,
    zero,
)
from verl_hpc.engines.megatron.passes import Passes
from verl_hpc.engines.megatron.precision import (
    check_moments,
    check_offload,
    choose_backend,
    drop_fp8_copies,
    drop_placeholders,
    fuse_weight_gradients,
)
from verl_hpc.engines.megatron.routers import Routers
from verl_hpc.engines.protocol import Head, OutputOptions, Part
from verl_hpc.engines.shared.invariant import Attend
from verl_hpc.engines.shared.layout_engine import LayoutEngine
from verl_hpc.engines.shared.micro_batches import Plan, Planner
from verl_hpc.engines.shared.offload import HostStore
from verl_hpc.engines.shared.outputs import Outputs
from verl_hpc.layout.adapters import AdapterShape, local_adapters, trained_map
from verl_hpc.layout.architecture import Architecture
from verl_hpc.layout.heads import HEAD_TENSORS
from verl_hpc.layout.megatron import TrainLayout
from verl_hpc.layout.shard_map import Region, union

# Blockwise FP8 scales 128 tokens together; the other recipes need multiples of 8 to 32.
_FP8_ROW_MULTIPLE = 128


class MegatronEngine(LayoutEngine):
    """One model on one training layout (`TrainingEngine`).

    Raises:
        ClusterError: this rank does not support the FP8 or offloading asked for.
        LayoutError, ModelError: sizes or a family that cannot be built.
    """

    _groups: MegatronGroups

    def __init__(
        self,
        arch: Architecture,
        groups: MegatronGroups,
        model: ModelConfig,
        parallel: ParallelConfig,
        *,
        head: Head,
        optimizer: OptimizerConfig | None,
        max_tokens: int,
        name: str,
        lora: LoraConfig | None = None,
        base: MegatronEngine | None = None,
        attend: Attend | None = None,
    ) -> None:
        assert lora is None or optimizer is not None, "adapters are there to be trained"
        assert base is None or (lora is not None and base.adapters is not None), "nothing is frozen"
        assert base is None or base.layout == groups.layout, "weights are cut differently"
        self.arch, self.head = arch, head
        self.layout: TrainLayout = groups.layout
        self.name = name
        self.dtype: torch.dtype = getattr(torch, model.dtype)
        self.shard_map = engine_shard_map(arch, groups.layout, model, head)
        self.trained_map = trained_map(arch, self.shard_map, head, lora)
        self._groups = groups
        self._guard = GuardedStep(name)
        backend = choose_backend(model, arch)
        check_offload(parallel)
        check_moments(optimizer)
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
            self.adapters: Adapters | None = None
            if lora is not None:
                self.adapters = self._add_adapters(chunks, lora)
            self.parameters = named_parameters(chunks)
            self._biases = named_biases(chunks)
            shared = share_frozen(self.parameters, base.parameters if base is not None else {})
            zero(parameter for parameter in self.parameters.values() if parameter not in shared)
            zero(self._biases.values())
            self._mark_sharded()
            # Without an optimizer (a reference model) there is nothing to reduce or to shard.
            self._chunks = wrap_data_parallel(self._config, chunks) if optimizer else chunks
            if optimizer is not None:
                fuse_weight_gradients(self._chunks)
            self.weights: Mapping[str, torch.Tensor] = {
                name: parameter.detach() for name, parameter in self.parameters.items()
            } | self._biases
            self.optimizer: Optimizer | None = None
            if optimizer is not None:
                self.optimizer = self._build_optimizer(optimizer)
        self._routers = (
            Routers(chunks, self._config, model.router, groups)
            if arch.is_moe and optimizer
            else None
        )
        self.host: HostStore = HostStore(
            memory_of(self._chunks, self.optimizer, shared),
            only_trained=lora is not None,
            base=base.host if base is not None else None,
        )
        exact = attend is not None
        self._outputs = Outputs(head, arch.vocab_size, groups, VOCAB_MULTIPLE, exact)
        # Rows that are split over ranks consist of whole sequences.
        shares = backend == "local" and groups.layout.cp == 1
        self._planner = Planner(groups.layout, arch.hidden_size, max_tokens, shares, groups.largest)
        self._passes = Passes(
            self._config,
            self._chunks,
            self._outputs,
            groups,
            backend=backend,
            row_multiple=(self.layout.tp if parallel.sequence_parallel else 1)
            * (_FP8_ROW_MULTIPLE if model.fp8 else 1),
            offloads_activations=parallel.offload_activations,
            attend=attend,
        )
        self.device = self._passes.device

    def _build_optimizer(self, settings: OptimizerConfig) -> Optimizer:
        # Gradients are sent when the last micro-batch is through, not while they still grow.
        no_sync = [chunk.no_sync for chunk in self._chunks]
        self._config.no_sync_func = no_sync if len(no_sync) > 1 else no_sync[0]
        names = {parameter: name for name, parameter in self.parameters.items()}
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

    def _mark_sharded(self) -> None:
        own = [n for n in self.trained_map.tensors if n not in self.shard_map.tensors]
        everything = union([self.shard_map, self.trained_map.restricted_to(own)])
        everyone = self.parameters | self._biases
        mark_sharded(everyone, self.layout, everything, dist.get_rank())
        if self.adapters is not None:
            self.adapters.mark_experts()

    def _primary_regions(self, rank: int) -> Sequence[Region]:
        return primary_regions_of(self.trained_map, self.layout, rank)

    def weights_changed(self) -> None:
        self.host.weights_loaded()
        if self.optimizer is not None:
            with self._groups.entered():
                self.optimizer.take_weights()

    def offload(self, part: Part, once: bool = False) -> int:
        if part == "parameters":
            drop_fp8_copies(self._chunks)
        return super().offload(part, once)

    def without_adapters(self) -> AbstractContextManager[None]:
        return self.adapters.disabled() if self.adapters is not None else nullcontext()

    # ---------------------------------------------------------------- passes

    @contextmanager
    def _updating(self, sequences: Sequence[torch.Tensor]) -> Iterator[None]:
        assert self.optimizer is not None
        with self._groups.entered():
            for chunk in self._chunks:
                chunk.zero_grad_buffer()
            self.optimizer.zero_grad()
            if self._routers is not None:
                self._routers.begin(sequences, self.device)
            yield
            drop_placeholders()

    def _run(
        self,
        sequences: Sequence[torch.Tensor],
        plan: Plan,
        temperature: float,
        consume: Callable[..., Any],
        wanted: OutputOptions,
        trains: bool,
    ) -> list[Any]:
        with self._groups.entered():
            for chunk in self._chunks:
                chunk.train(trains)
            return self._passes.run(
                sequences, plan, temperature, consume, forward_only=not trains, wanted=wanted
            )

    def update(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        metrics = super().update(*args, **kwargs)
        # An update that was skipped changes nothing.
        if self._routers is not None and math.isfinite(metrics["grad_norm"]):
            self._routers.balance()
        return metrics

    def _routing(self, wanted: OutputOptions) -> dict[str, float]:
        metrics = self._routers.end() if self._routers is not None else {}
        if wanted.experts is not None:
            metrics["router_disagreement"] = self._passes.router_disagreement()
        return metrics

    def _sum_gradients(self, model: list[Any], num_tokens: Any = None, **groups: Any) -> None:
        """Sum gradients over replicas, stages and ranks, without averaging."""
        del num_tokens
        finalize_model_grads(model, None, **groups)
        if self.adapters is not None:
            self.adapters.sum_over_experts()
