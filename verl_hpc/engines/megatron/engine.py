"""Megatron-core behind four calls: infer, update, weights, state."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.distributed import finalize_model_grads
from megatron.core.pipeline_parallel import get_forward_backward_func

from verl_hpc.config.model import ModelConfig, OptimizerConfig, ParallelConfig
from verl_hpc.engines.megatron.build import build_chunks, transformer_config
from verl_hpc.engines.megatron.log_probs import log_probs_and_entropy
from verl_hpc.engines.megatron.offload import HostStore
from verl_hpc.engines.megatron.optimizer import Optimizer, wrap_data_parallel
from verl_hpc.engines.megatron.packing import PackedRow, pack
from verl_hpc.engines.megatron.precision import choose_backend
from verl_hpc.engines.megatron.spec import MicroBatches, PackedRotaryEmbedding
from verl_hpc.errors import TrainingError
from verl_hpc.layout.architecture import Architecture
from verl_hpc.layout.live import check_parameters
from verl_hpc.layout.megatron import TrainLayout, megatron_shard_map, padded_vocab
from verl_hpc.layout.shard_map import ShardMap
from verl_hpc.layout.writers import primary_regions
from verl_hpc.planner.balance import micro_batches

Role = Literal["actor", "critic"]

VOCAB_MULTIPLE = 64
# Blockwise FP8 scales 128 tokens together; the other recipes need multiples of 8 to 32.
_FP8_ROW_MULTIPLE = 128


@dataclass(frozen=True)
class TokenOutputs:
    """Per-token outputs of one sequence of L tokens, each (L - 1,) float32.

    Element i speaks of token i + 1: its log-probability, the entropy of the distribution it was
    drawn from, or (critic) the value of the state before it.
    """

    log_probs: torch.Tensor | None = None
    entropy: torch.Tensor | None = None
    untempered: torch.Tensor | None = None
    """Log-probability at temperature 1, where it was asked for."""
    values: torch.Tensor | None = None


MOST_SKIPPED = 10
"""Updates in a row that optimizer.on_nonfinite: skip lets go."""

Loss = Callable[[Sequence[int], Sequence[TokenOutputs]], tuple[torch.Tensor, dict[str, float]]]
"""(indices of a micro-batch's sequences, their outputs) to (scalar, sums of metrics).

The scalar is divided by global normalisers already: gradients are summed over everything.
"""


class MegatronEngine:
    """One model on one training layout: an actor (log-probs) or a critic (values).

    All ranks of the layout build it and call its methods together. Sequences are those of this
    rank's data-parallel replica, the same on all ranks of a model-parallel group.

    Raises:
        ClusterError: FP8 that this rank cannot do.
        LayoutError, ModelError: sizes or a family that cannot be built.
    """

    def __init__(
        self,
        arch: Architecture,
        layout: TrainLayout,
        model: ModelConfig,
        parallel: ParallelConfig,
        *,
        role: Role = "actor",
        optimizer: OptimizerConfig | None = None,
        max_tokens: int = 16384,
    ) -> None:
        self.arch, self.layout, self.role = arch, layout, role
        self.max_tokens = max_tokens
        self.dtype: torch.dtype = getattr(torch, model.dtype)
        backend = choose_backend(model)
        self.shard_map = megatron_shard_map(
            arch,
            layout,
            backend=backend,
            value_head=role == "critic",
            dtype=model.dtype,
            vocab_multiple=VOCAB_MULTIPLE,
        )
        self._packs_with_positions = backend == "local"
        self._config = transformer_config(
            arch,
            layout,
            dtype=self.dtype,
            parallel=parallel,
            fp8=model.fp8,
            backend=backend,
        )
        self._config.finalize_model_grads_func = _sum_gradients
        self._row_multiple = (layout.tp if parallel.sequence_parallel else 1) * (
            _FP8_ROW_MULTIPLE if model.fp8 else 1
        )
        # Log-probs widen the logits chunk by chunk; all of them at once would be gigabytes.
        self._output_options = {"fp32_output": False} if self._config.bf16 else {}
        chunks = build_chunks(
            self._config,
            arch,
            layout,
            backend=backend,
            value_head=role == "critic",
            vocab_multiple=VOCAB_MULTIPLE,
        )
        self._mark_sharded(chunks)
        # Without an optimizer (a reference model) there is nothing to reduce or to shard.
        self._chunks = wrap_data_parallel(self._config, chunks) if optimizer else chunks
        if optimizer:
            # Gradients are sent when the last micro-batch is through, not while they still grow.
            no_sync = [chunk.no_sync for chunk in self._chunks]
            self._config.no_sync_func = no_sync if len(no_sync) > 1 else no_sync[0]
        named = list(_named_parameters(self._chunks))
        self.weights = {name: parameter.detach() for name, parameter in named}
        self.optimizer = (
            Optimizer(optimizer, self._chunks, {p: n for n, p in named}, self.dtype)
            if optimizer
            else None
        )
        self._skipped = 0
        """Updates skipped since the last that was made."""
        self.host = HostStore(self._chunks, self.optimizer)

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
    def data_parallel_group(self) -> dist.ProcessGroup:
        """Ranks that have the same place in other replicas."""
        return parallel_state.get_data_parallel_group()

    def optimizer_map(self, primary: bool = False) -> ShardMap:
        """Regions of this rank's optimizer state, with the specs of everybody's.

        Args:
            primary: leave out what a model-parallel mate holds as well and stands for.
        """
        assert self.optimizer is not None
        rank = dist.get_rank()
        regions = (
            primary_regions(self.shard_map, self.layout.grid, rank)
            if primary
            else self.shard_map.held_by(rank)
        )
        return self.optimizer.state_map(self.shard_map.tensors, regions, rank)

    def weights_changed(self) -> None:
        """Tell the optimizer that `weights` were filled from outside."""
        if self.optimizer is not None:
            self.optimizer.take_weights()

    # ---------------------------------------------------------------- passes

    def infer(
        self,
        sequences: Sequence[torch.Tensor],
        temperature: float = 1.0,
        untempered: bool = False,
    ) -> list[TokenOutputs]:
        """Log-probs and entropy (actor) or values (critic) of every sequence, without gradient.

        Args:
            sequences: (L,) int64 token tensors, L >= 2.
            temperature: divides the actor's logits.
            untempered: give log-probs at temperature 1 besides, from the same pass.

        Returns:
            One entry per sequence, on every rank of the model-parallel group.
        """
        bins = self._bins(sequences)
        rows = [self._pack(sequences, indices) for indices in bins]

        def collect(indices: Sequence[int], outputs: list[TokenOutputs]) -> list[TokenOutputs]:
            del indices
            return outputs

        for chunk in self._chunks:
            chunk.eval()
        with torch.no_grad():
            found = self._run(
                bins, rows, temperature, collect, forward_only=True, untempered=untempered
            )
        fields = ["values"] if self.role == "critic" else ["log_probs", "entropy"]
        return self._share(found, bins, sequences, fields + ["untempered"] * untempered)

    def update(
        self, sequences: Sequence[torch.Tensor], loss: Loss, temperature: float = 1.0
    ) -> dict[str, float]:
        """One optimizer step on the summed loss of all sequences of all replicas.

        Returns:
            Sums of the loss function's metrics over all replicas, and `loss`, `grad_norm`, `lr`;
            the same on every rank.

        Raises:
            TrainingError: the loss or the gradient is not finite, and optimizer.on_nonfinite is
                stop, or the updates before were skipped, too; weights are as they were.
        """
        assert self.optimizer is not None
        bins = self._bins(sequences)
        rows = [self._pack(sequences, indices) for indices in bins]
        for chunk in self._chunks:
            chunk.train()
            chunk.zero_grad_buffer()
        self.optimizer.zero_grad()
        found = self._run(bins, rows, temperature, loss, forward_only=False)
        metrics = self._sum_metrics([f for f in found if f is not None])
        metrics["lr"] = self.optimizer.learning_rate
        skips = self.optimizer.settings.on_nonfinite == "skip"
        try:
            self._refuse_loss(metrics["loss"])
            metrics["grad_norm"] = self.optimizer.step()
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
                f"the {self.role}'s loss is {loss}; the weights were left as they were. Look at "
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
        if self.role == "critic":
            values = row.split(tensor.view(-1))
            return [TokenOutputs(values=v[:-1]) for v in values]
        shard = padded_vocab(self.arch.vocab_size, self.layout.tp, VOCAB_MULTIPLE) // self.layout.tp
        first = parallel_state.get_tensor_model_parallel_rank() * shard
        read = partial(
            log_probs_and_entropy,
            tensor.view(-1, shard),
            row.targets,
            first_row=first,
            num_rows=min(max(self.arch.vocab_size - first, 0), shard),
            group=parallel_state.get_tensor_model_parallel_group() if self.layout.tp > 1 else None,
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
        sizes = [len(s) - 1 for s in sequences]
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
                dist.broadcast(
                    flat,
                    parallel_state.get_pipeline_model_parallel_last_rank(),
                    group=parallel_state.get_pipeline_model_parallel_group(),
                )
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
            dist.broadcast_object_list(
                shared,
                parallel_state.get_pipeline_model_parallel_last_rank(),
                group=parallel_state.get_pipeline_model_parallel_group(),
            )
        names, values = shared
        totals = torch.tensor(values, dtype=torch.float64)
        if self.layout.dp > 1:
            dist.all_reduce(totals, group=parallel_state.get_data_parallel_group_gloo())
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
