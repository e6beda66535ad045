"""Megatron-core as a training engine: weights, passes, updates."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from megatron.core.distributed import finalize_model_grads
from megatron.core.pipeline_parallel import get_forward_backward_func

from verl_hpc.config.model import ModelConfig, OptimizerConfig, ParallelConfig
from verl_hpc.engines.megatron.build import (
    VOCAB_MULTIPLE,
    build_chunks,
    engine_shard_map,
    transformer_config,
)
from verl_hpc.engines.megatron.log_probs import log_probs_and_entropy
from verl_hpc.engines.megatron.offload import HostStore
from verl_hpc.engines.megatron.optimizer import Optimizer, wrap_data_parallel
from verl_hpc.engines.megatron.packing import PackedRow, pack
from verl_hpc.engines.megatron.parallel import LayoutGroups
from verl_hpc.engines.megatron.precision import choose_backend
from verl_hpc.engines.megatron.spec import MicroBatches, PackedRotaryEmbedding
from verl_hpc.engines.protocol import Head, Loss, Part, TokenOutputs
from verl_hpc.errors import TrainingError
from verl_hpc.layout.architecture import Architecture
from verl_hpc.layout.live import check_parameters
from verl_hpc.layout.megatron import padded_vocab
from verl_hpc.layout.shard_map import ShardMap
from verl_hpc.layout.writers import primary_regions
from verl_hpc.planner.balance import micro_batches

# Blockwise FP8 scales 128 tokens together; the other recipes need multiples of 8 to 32.
_FP8_ROW_MULTIPLE = 128


MOST_SKIPPED = 10
"""Updates in a row that optimizer.on_nonfinite: skip lets go."""

_OUTPUTS: Mapping[Head, tuple[str, ...]] = {
    "language_model": ("log_probs", "entropy"),
    "value": ("values",),
    "score": ("scores",),
}
"""Fields of TokenOutputs that a head fills."""


class MegatronEngine:
    """One model on one training layout (`TrainingEngine`).

    Raises:
        ClusterError: FP8 that this rank cannot do.
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
    ) -> None:
        self.arch, self.layout, self.head = arch, groups.layout, head
        self.name = name
        self.max_tokens = max_tokens
        self.dtype: torch.dtype = getattr(torch, model.dtype)
        self.shard_map = engine_shard_map(arch, groups.layout, model, head)
        self._groups = groups
        self._skipped = 0
        """Updates skipped since the last that was made."""
        backend = choose_backend(model)
        self._packs_with_positions = backend == "local"
        with groups.entered():
            self._config = transformer_config(
                arch,
                groups.layout,
                dtype=self.dtype,
                parallel=parallel,
                fp8=model.fp8,
                backend=backend,
            )
            self._config.finalize_model_grads_func = _sum_gradients
            self._row_multiple = (self.layout.tp if parallel.sequence_parallel else 1) * (
                _FP8_ROW_MULTIPLE if model.fp8 else 1
            )
            # Log-probs widen the logits chunk by chunk; all of them at once would be gigabytes.
            self._output_options = {"fp32_output": False} if self._config.bf16 else {}
            chunks = build_chunks(self._config, arch, groups, backend=backend, head=head)
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
        self.host = HostStore(self._chunks, self.optimizer)

    def _build_optimizer(
        self, settings: OptimizerConfig, names: Mapping[torch.nn.Parameter, str]
    ) -> Optimizer:
        # Gradients are sent when the last micro-batch is through, not while they still grow.
        no_sync = [chunk.no_sync for chunk in self._chunks]
        self._config.no_sync_func = no_sync if len(no_sync) > 1 else no_sync[0]
        return Optimizer(settings, self._chunks, names, self.dtype, self._groups.everyone)

    # ---------------------------------------------------------------- weights

    def _mark_sharded(self, chunks: Sequence[torch.nn.Module]) -> None:
        """Mark what is split over tensor-parallel ranks, for the gradient norm to count it whole.

        Megatron-core does so only when it initialises weights itself.
        """
        rank = dist.get_rank()
        here = self.layout.grid.coordinates(rank)
        mates = {self.layout.grid.rank(**(here | {"tp": index})) for index in range(self.layout.tp)}
        parameters = dict(_named_parameters(chunks))
        check_parameters(self.shard_map, rank, parameters, "Megatron-core")
        for region in self.shard_map.held_by(rank):
            sharded = not mates.issubset(region.holders)
            parameters[region.view.name].tensor_model_parallel = sharded

    @property
    def is_trainable(self) -> bool:
        return self.optimizer is not None

    def optimizer_map(self, primary: bool = False) -> ShardMap:
        assert self.optimizer is not None
        rank = dist.get_rank()
        regions = (
            primary_regions(self.shard_map, self.layout.grid, rank)
            if primary
            else self.shard_map.held_by(rank)
        )
        return self.optimizer.state_map(self.shard_map.tensors, regions, rank)

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
        if self.optimizer is not None:
            with self._groups.entered():
                self.optimizer.take_weights()

    def offload(self, part: Part, once: bool = False) -> int:
        return self.host.offload(part, once)

    def onload(self, part: Part) -> None:
        self.host.onload(part)

    # ---------------------------------------------------------------- passes

    def infer(
        self,
        sequences: Sequence[torch.Tensor],
        temperature: float = 1.0,
        untempered: bool = False,
    ) -> list[TokenOutputs]:
        bins = self._bins(sequences)
        rows = [self._pack(sequences, indices) for indices in bins]

        def collect(indices: Sequence[int], outputs: list[TokenOutputs]) -> list[TokenOutputs]:
            del indices
            return outputs

        for chunk in self._chunks:
            chunk.eval()
        with torch.no_grad(), self._groups.entered():
            found = self._run(
                bins, rows, temperature, collect, forward_only=True, untempered=untempered
            )
        fields = [*_OUTPUTS[self.head], *["untempered"] * untempered]
        return self._share(found, bins, sequences, fields)

    def update(
        self, sequences: Sequence[torch.Tensor], loss: Loss, temperature: float = 1.0
    ) -> dict[str, float]:
        assert self.optimizer is not None
        bins = self._bins(sequences)
        rows = [self._pack(sequences, indices) for indices in bins]
        with self._groups.entered():
            for chunk in self._chunks:
                chunk.train()
                chunk.zero_grad_buffer()
            self.optimizer.zero_grad()
            found = self._run(bins, rows, temperature, loss, forward_only=False)
            metrics = self._sum_metrics([f for f in found if f is not None])
            return metrics | self._step(self.optimizer, metrics["loss"])

    def _step(self, optimizer: Optimizer, loss: float) -> dict[str, float]:
        """Update the weights, unless the loss or the gradient is not finite."""
        metrics = {"lr": optimizer.learning_rate}
        skips = optimizer.settings.on_nonfinite == "skip"
        try:
            self._refuse_loss(loss)
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

    def _refuse_loss(self, loss: float) -> None:
        if not math.isfinite(loss):
            raise TrainingError(
                f"the {self.name}'s loss is {loss}; the weights were left as they were. Look at "
                "the rewards and advantages of this step's batch"
            )

    def _bins(self, sequences: Sequence[torch.Tensor]) -> list[list[int]]:
        multiple = self.layout.pp if self.layout.vpp > 1 else 1
        return micro_batches([len(s) for s in sequences], self.max_tokens, multiple)

    def _pack(self, sequences: Sequence[torch.Tensor], indices: Sequence[int]) -> PackedRow:
        # An interleaved pipeline may need more micro-batches than there are sequences.
        device = (
            torch.device("cpu") if self._config.use_cpu_initialization else torch.device("cuda")
        )
        chosen = [sequences[i].to(device) for i in indices]
        empty = torch.zeros(1, dtype=torch.int64, device=device)
        return pack(chosen or [empty], self._row_multiple)

    def _run(
        self,
        bins: Sequence[Sequence[int]],
        rows: Sequence[PackedRow],
        temperature: float,
        consume: Callable[..., Any],
        forward_only: bool,
        untempered: bool = False,
    ) -> list[Any]:
        """Send all micro-batches through the pipeline; `consume` runs on the last stage."""
        work = [
            (indices, row, MicroBatches.register(row))
            for indices, row in zip(bins, rows, strict=True)
        ]

        def forward_step(batches: Iterator[Any], model: torch.nn.Module) -> tuple[Any, Any]:
            indices, row, ticket = next(batches)
            output = self._forward(model, row, ticket)

            def finish(tensor: torch.Tensor, non_loss_data: bool = False) -> Any:
                outputs = self._outputs(tensor, row, temperature, untempered)[: len(indices)]
                if non_loss_data:
                    return consume(indices, outputs)
                if not indices:  # the backward pass needs a graph, also through mere padding
                    return tensor.float().sum() * 0.0, torch.tensor(0), {"loss": 0.0}
                value, sums = consume(indices, outputs)
                # The pipeline schedule may divide what it is given in place.
                return value, torch.tensor(0), {**sums, "loss": float(value.detach())}

            return output, finish

        iterators = [iter(work) for _ in self._chunks]
        single = len(self._chunks) == 1
        try:
            return get_forward_backward_func()(
                forward_step_func=forward_step,
                data_iterator=iterators[0] if single else iterators,
                model=self._chunks[0] if single else self._chunks,
                num_microbatches=len(work),
                seq_length=1,  # rows tell their own lengths
                micro_batch_size=1,
                forward_only=forward_only,
                collect_non_loss_data=forward_only,
            )
        finally:
            MicroBatches.clear()

    def _forward(
        self, model: torch.nn.Module, row: PackedRow, ticket: torch.Tensor
    ) -> torch.Tensor:
        if self._packs_with_positions:
            inner = _unwrap(model)
            rotary: PackedRotaryEmbedding = inner.rotary_pos_emb
            rotary.positions = row.positions
            return model(row.tokens, row.positions, ticket, **self._output_options)
        from megatron.core.packed_seq_params import PackedSeqParams

        starts = row.cumulative_lengths
        packed = PackedSeqParams(
            qkv_format="thd",
            cu_seqlens_q=starts,
            cu_seqlens_kv=starts,
            max_seqlen_q=max(row.lengths),
            max_seqlen_kv=max(row.lengths),
        )
        return model(
            row.tokens, row.positions, None, packed_seq_params=packed, **self._output_options
        )

    def _outputs(
        self, tensor: torch.Tensor, row: PackedRow, temperature: float, untempered: bool
    ) -> list[TokenOutputs]:
        if self.head == "value":
            return [TokenOutputs(values=v[:-1]) for v in row.split(tensor.view(-1))]
        if self.head == "score":
            return [TokenOutputs(scores=v[-1:]) for v in row.split(tensor.view(-1))]
        shard = padded_vocab(self.arch.vocab_size, self.layout.tp, VOCAB_MULTIPLE) // self.layout.tp
        first = self._groups.tp.rank() * shard
        read = partial(
            log_probs_and_entropy,
            tensor.view(-1, shard),
            row.targets,
            first_row=first,
            num_rows=min(max(self.arch.vocab_size - first, 0), shard),
            group=self._groups.tp if self.layout.tp > 1 else None,
        )
        columns = dict(zip(("log_probs", "entropy"), read(temperature=temperature), strict=True))
        if untempered:
            tempered = temperature != 1.0
            columns["untempered"] = read(temperature=1.0)[0] if tempered else columns["log_probs"]
        rows = zip(*(row.split(column) for column in columns.values()), strict=True)
        return [
            TokenOutputs(**{n: v[:-1] for n, v in zip(columns, values, strict=True)})
            for values in rows
        ]

    # ---------------------------------------------------------------- sharing results

    def _share(
        self,
        found: Sequence[list[TokenOutputs]],
        bins: Sequence[Sequence[int]],
        sequences: Sequence[torch.Tensor],
        fields: Sequence[str],
    ) -> list[TokenOutputs]:
        """Put outputs in the caller's order and give earlier pipeline stages the last one's."""
        sizes = [1 if self.head == "score" else len(s) - 1 for s in sequences]
        columns: dict[str, list[torch.Tensor]] = {}
        for field in fields:
            by_index: dict[int, torch.Tensor] = {}
            for indices, outputs in zip(bins, found, strict=False):
                by_index |= {i: getattr(o, field) for i, o in zip(indices, outputs, strict=True)}
            flat = (
                torch.cat([by_index[i] for i in range(len(sizes))])
                if by_index
                else self._blank(sum(sizes))
            )
            if self.layout.pp > 1:
                dist.broadcast(flat, self._groups.stages[-1], group=self._groups.pp)
            columns[field] = list(flat.split(sizes))
        return [
            TokenOutputs(**{field: columns[field][i] for field in fields})
            for i in range(len(sizes))
        ]

    def _blank(self, size: int) -> torch.Tensor:
        device = "cpu" if self._config.use_cpu_initialization else torch.cuda.current_device()
        return torch.empty(size, dtype=torch.float32, device=device)

    def _sum_metrics(self, found: Sequence[Mapping[str, float]]) -> dict[str, float]:
        """Sum over micro-batches, then over replicas; only the last stage has any."""
        names = sorted({name for sums in found for name in sums})
        # Every last stage computes the same metrics, but a stage before it knows no names.
        shared: list[Any] = [names, [sum(s.get(n, 0.0) for s in found) for n in names]]
        if self.layout.pp > 1:
            dist.broadcast_object_list(shared, self._groups.stages[-1], group=self._groups.pp)
        names, values = shared
        totals = torch.tensor(values, dtype=torch.float64)
        if self.layout.dp > 1:
            dist.all_reduce(totals, group=self._groups.dp_gloo)
        return dict(zip(names, totals.tolist(), strict=True))


def _sum_gradients(model: list[Any], num_tokens: Any = None, **groups: Any) -> None:
    """Reduce gradients over replicas, stages and ranks; divide by nothing."""
    del num_tokens
    finalize_model_grads(model, None, **groups)


def _named_parameters(
    chunks: Sequence[torch.nn.Module],
) -> Iterator[tuple[str, torch.nn.Parameter]]:
    """Parameters by the local names of the shard map."""
    for index, chunk in enumerate(chunks):
        for name, parameter in chunk.named_parameters():
            yield f"chunk{index}.{name.replace('module.', '')}", parameter


def _unwrap(model: torch.nn.Module) -> torch.nn.Module:
    while hasattr(model, "module"):
        model = model.module
    return model
