"""Forward and backward passes of packed micro-batches through the pipeline."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.transformer.transformer_config import TransformerConfig

from verl_hpc.engines.megatron.context import pack_split
from verl_hpc.engines.megatron.host_activations import HostActivations
from verl_hpc.engines.megatron.parallel import MegatronGroups
from verl_hpc.engines.megatron.router_replay import RouterReplay
from verl_hpc.engines.megatron.rows import MicroBatch, MicroBatches, RoutedRow, RowParams
from verl_hpc.engines.megatron.stages import stage_messages
from verl_hpc.engines.protocol import NOTHING_MORE, OutputOptions
from verl_hpc.engines.shared.invariant import Attend
from verl_hpc.engines.shared.micro_batches import Plan
from verl_hpc.engines.shared.outputs import Outputs
from verl_hpc.engines.shared.packing import PackedRow, pack
from verl_hpc.engines.shared.shared_prefixes import within
from verl_hpc.layout.megatron import Backend


class Passes:
    """Runs this rank's chunks over sequences.

    Args:
        config: Megatron-core's settings.
        chunks: this rank's chunks, wrapped for data parallelism if trained.
        outputs: reads the last stage's outputs.
        groups: the layout's process groups.
        backend: library of the layers.
        row_multiple: a micro-batch's tokens on a rank are padded to a multiple of it.
        offloads_activations: whether inputs of layers wait in host memory.
        attend: kernel of attention of PyTorch's layers; None takes PyTorch's.
    """

    def __init__(
        self,
        config: TransformerConfig,
        chunks: Sequence[torch.nn.Module],
        outputs: Outputs,
        groups: MegatronGroups,
        *,
        backend: Backend,
        row_multiple: int,
        offloads_activations: bool,
        attend: Attend | None = None,
    ) -> None:
        self._attend = attend
        self._chunks, self._outputs = list(chunks), outputs
        self._row_multiple, self._groups = row_multiple, groups
        self._is_local = backend == "local"
        self._config, self._replay = config, RouterReplay(config, chunks, groups)
        self._ranks_of_row = groups.layout.cp * (
            groups.layout.tp if config.sequence_parallel else 1
        )
        self._saving: Callable[[], AbstractContextManager[None]] = nullcontext
        if offloads_activations:
            weights = [weight for chunk in chunks for weight in chunk.parameters()]
            self._saving = HostActivations(weights, config.hidden_size).saving
        # Log-probs widen the logits chunk by chunk; all of them at once would be gigabytes.
        self._options = {"fp32_output": False} if config.bf16 else {}
        self.device = torch.device("cpu" if config.use_cpu_initialization else "cuda")

    def run(
        self,
        sequences: Sequence[torch.Tensor],
        plan: Plan,
        temperature: float,
        consume: Callable[..., Any],
        *,
        forward_only: bool,
        wanted: OutputOptions = NOTHING_MORE,
    ) -> list[Any]:
        """Send all micro-batches through the pipeline. On the last stage `consume` is called with
        (indices, outputs) of each, and `run` returns what it returned."""
        self._replay.forget_counts()
        work = []
        for indices in plan.bins:
            row = self._pack(sequences, indices, plan.shared)
            experts = wanted.of(indices).experts
            routed = self._replay.row(row, experts) if experts is not None else None
            ticket = MicroBatches.register(row, routed, self._attend) if self._is_local else None
            work.append((indices, row, ticket, routed))

        def forward_step(batches: Iterator[Any], model: torch.nn.Module) -> tuple[Any, Any]:
            indices, row, ticket, routed = next(batches)
            with self._saving():
                output = self._forward(model, row, ticket, routed)

            def finish(tensor: torch.Tensor, non_loss_data: bool = False) -> Any:
                mine = wanted.of(indices)
                outputs = self._outputs.read(tensor, row, temperature, mine) if indices else []
                if non_loss_data:
                    return consume(indices, outputs)
                if not indices:  # the backward pass needs a graph, also through mere padding
                    nothing = tensor.float().sum() * 0.0
                    return nothing, torch.tensor(0), {"loss": nothing.detach().clone()}
                value, sums = consume(indices, outputs)
                # The pipeline schedule may divide what it is given in place.
                return value, torch.tensor(0), {**sums, "loss": value.detach().clone()}

            return output, finish

        iterators = [iter(work) for _ in self._chunks]
        single = len(self._chunks) == 1
        lengths = [row.tokens.shape[1] // self._ranks_of_row for _, row, *_ in work]
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
                **stage_messages(self._groups.pp, self._config, lengths),
            )
        finally:
            MicroBatches.clear()

    def router_disagreement(self) -> float:
        """Return `RouterReplay.disagreement` of the last `run`."""
        return self._replay.disagreement(self.device)

    def _pack(
        self, sequences: Sequence[torch.Tensor], indices: Sequence[int], shared: Sequence[int]
    ) -> PackedRow:
        """Pack a micro-batch's row; without sequences, when other replicas have more work or a
        pipeline is to be filled, it is padding only."""
        chosen = [sequences[i].to(self.device) for i in indices]
        padding = torch.zeros(1, dtype=torch.int64, device=self.device)
        if self._groups.layout.cp > 1:
            row = pack_split(chosen or [padding], self._row_multiple, self._groups.cp)
        else:
            shares = within(indices, shared) if chosen else None
            row = pack(chosen or [padding], self._row_multiple, shares)
        return row if chosen else replace(row, num_sequences=0, real_lengths=None)

    def _forward(
        self,
        model: torch.nn.Module,
        row: PackedRow,
        ticket: torch.Tensor | None,
        routed: RoutedRow | None,
    ) -> torch.Tensor:
        tokens, positions = (row.local(t[0])[None] for t in (row.tokens, row.positions))
        if self._is_local:
            # Latent attention finds them itself.
            if (rotary := getattr(_unwrap(model), "rotary_pos_emb", None)) is not None:
                rotary.positions = positions
            return model(tokens, positions, ticket, **self._options)
        # Of the whole row and with padding, which nothing before it reads: each rank finds its own.
        starts = row.cumulative_lengths
        packed = RowParams(
            qkv_format="thd",
            cu_seqlens_q=starts,
            cu_seqlens_kv=starts,
            max_seqlen_q=max(row.lengths),
            max_seqlen_kv=max(row.lengths),
            micro_batch=MicroBatch(row, routed, None),
        )
        return model(tokens, positions, None, packed_seq_params=packed, **self._options)


def _unwrap(model: torch.nn.Module) -> Any:
    while hasattr(model, "module"):
        model = model.module
    return model
