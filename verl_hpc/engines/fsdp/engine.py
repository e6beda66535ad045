"""PyTorch's fully_shard as a training engine: weights, passes, updates."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.distributed as dist

from verl_hpc.config.fsdp import FsdpConfig
from verl_hpc.config.model import ModelConfig, OptimizerConfig, ParallelConfig
from verl_hpc.engines.fsdp.build import (
    build_decoder,
    local_part,
    sharded_modules,
)
from verl_hpc.engines.fsdp.kernels import choose_kernels
from verl_hpc.engines.fsdp.optimizer import MakeSchedule, ShardedAdam
from verl_hpc.engines.fsdp.passes import Passes
from verl_hpc.engines.guarded_step import GuardedStep
from verl_hpc.engines.protocol import (
    NOTHING_MORE,
    Head,
    Loss,
    OnOutputs,
    OutputOptions,
    Sums,
    TokenOutputs,
)
from verl_hpc.engines.shared.groups import LayoutGroups
from verl_hpc.engines.shared.micro_batches import Plan
from verl_hpc.engines.shared.offload import HostStore, KeptOnHost, Memory
from verl_hpc.engines.shared.outputs import Outputs, sum_metrics
from verl_hpc.layout.architecture import Architecture
from verl_hpc.layout.fsdp import fsdp_shard_map, kept_dtype
from verl_hpc.layout.live import check_parameters
from verl_hpc.layout.megatron import TrainLayout
from verl_hpc.layout.shard_map import ShardMap
from verl_hpc.layout.writers import assign_writers


def engine_shard_map(
    arch: Architecture, layout: TrainLayout, model: ModelConfig, head: Head, trainable: bool
) -> ShardMap:
    """Return the shard map of this model's engine; any rank may call it."""
    return fsdp_shard_map(arch, layout, head=head, dtype=kept_dtype(model.dtype, trainable))


class FsdpEngine(KeptOnHost):
    """One model with its parameters sharded over all ranks of a layout (`TrainingEngine`).

    Raises:
        ClusterError: layers are to be compiled on a rank without a GPU.
        LayoutError: a size other than data parallelism, or a mixture of experts.
    """

    adapted: Mapping[str, torch.Tensor] = {}

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
        schedule: MakeSchedule,
    ) -> None:
        self.arch, self.layout, self.head = arch, groups.layout, head
        self.shard_map = engine_shard_map(arch, groups.layout, model, head, optimizer is not None)
        self.trained_map = self.shard_map
        self.dtype: torch.dtype = getattr(torch, kept_dtype(model.dtype, optimizer is not None))
        self._groups, self._guard = groups, GuardedStep(name)
        kernels = choose_kernels(model, parallel.fsdp or FsdpConfig())
        self.decoder = build_decoder(
            arch,
            groups,
            model,
            parallel,
            head=head,
            trainable=optimizer is not None,
            kernels=kernels,
        )
        self._modules = sharded_modules(self.decoder)
        named = dict(self.decoder.named_parameters())
        shards = {n: local_part(p) for n, p in named.items()}
        self._shards = list(shards.values())
        self.weights: Mapping[str, torch.Tensor] = {n: t for n, t in shards.items() if t.numel()}
        check_parameters(self.shard_map, dist.get_rank(), self.weights, "transformers")
        self.optimizer = (
            ShardedAdam(optimizer, named, groups.shard, schedule) if optimizer else None
        )
        self.host = HostStore(self._memory)
        self._outputs = Outputs(head, arch.vocab_size, groups, vocab_multiple=1)
        self._passes = Passes(
            self.decoder, self._outputs, groups, max_tokens=max_tokens, uses_flash=kernels.flash
        )

    # ---------------------------------------------------------------- weights

    def _memory(self, part: Memory) -> Iterator[torch.Tensor]:
        """Yield the tensors of `part`; gradients exist only within an update, and master weights
        are the parameters."""
        if part in ("parameters", "trained"):
            yield from self._shards
        elif part == "optimizer" and self.optimizer is not None:
            tensors = self.optimizer.state_tensors()
            yield from (t for name, t in tensors.items() if not name.startswith("main/"))

    @property
    def is_trainable(self) -> bool:
        return self.optimizer is not None

    def weights_changed(self) -> None:
        self.host.weights_changed()

    def optimizer_map(self, primary: bool = False) -> ShardMap:
        assert self.optimizer is not None
        rank = dist.get_rank()
        # Of ranks with the same rows each keeps a part, as of the weights.
        mine = assign_writers(self.shard_map)[rank] if primary else self.shard_map.held_by(rank)
        return self.optimizer.state_map(self.shard_map.tensors, mine, rank)

    def optimizer_tensors(self) -> dict[str, torch.Tensor]:
        assert self.optimizer is not None
        return self.optimizer.state_tensors()

    def counters(self) -> dict[str, int]:
        assert self.optimizer is not None
        return self.optimizer.counters()

    def restore_counters(self, counters: Mapping[str, int]) -> None:
        assert self.optimizer is not None
        self.optimizer.restore_counters(counters)

    def merge(self, name: str, to: torch.Tensor) -> None:
        raise AssertionError(f"{name} has no adapter to merge into {to.shape}")

    def without_adapters(self) -> AbstractContextManager[None]:
        return nullcontext()

    # ---------------------------------------------------------------- passes

    def infer(
        self,
        sequences: Sequence[torch.Tensor],
        temperature: float = 1.0,
        wanted: OutputOptions = NOTHING_MORE,
    ) -> list[TokenOutputs]:
        plan = self._passes.plan(sequences)
        self.decoder.eval()

        # The pass is over micro-batches in plan order; `share` puts them back in the caller's.
        def collect(indices: Sequence[int], outputs: list[TokenOutputs]) -> list[TokenOutputs]:
            del indices
            return outputs

        with torch.no_grad():
            by_micro_batch = [
                f or [] for f in self._run(sequences, plan, temperature, collect, wanted)
            ]
        lengths = [len(s) for s in sequences]
        return self._outputs.share(by_micro_batch, plan.bins, lengths, wanted, self._passes.device)

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
        plan = self._passes.plan(sequences, together)
        kept: dict[tuple[int, ...], list[TokenOutputs]] = {}

        def backward(indices: Sequence[int], outputs: Sequence[TokenOutputs]) -> Sums:
            if seen is not None:
                kept[tuple(indices)] = [o.detached() for o in outputs]
            value, sums = loss(indices, outputs)
            value.backward()  # type: ignore[no-untyped-call]
            return {**sums, "loss": value.detach()}

        self.decoder.train()
        self.optimizer.zero_grad()
        try:
            sums_of_batches = self._run(sequences, plan, temperature, backward, wanted)
            metrics = sum_metrics([f for f in sums_of_batches if f is not None], self._groups)
            if seen is not None:
                lengths, device = [len(s) for s in sequences], self._passes.device
                outputs = [kept.get(tuple(indices), []) for indices in plan.bins]
                seen(self._outputs.share(outputs, plan.bins, lengths, wanted, device))
            self.host.weights_changed()
            return metrics | self._guard.step(self.optimizer, metrics["loss"])
        finally:
            self.optimizer.zero_grad()

    def _run(
        self,
        sequences: Sequence[torch.Tensor],
        plan: Plan,
        temperature: float,
        consume: Callable[..., Any],
        wanted: OutputOptions,
    ) -> list[Any]:
        try:
            return self._passes.run(sequences, plan, temperature, consume, wanted)
        finally:
            # What is gathered outside layers stays for a backward pass, and would be old then.
            for module in self._modules:
                module.reshard()
