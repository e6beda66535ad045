"""Micro-batches of packed sequences through the pipeline, forward and backward."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.transformer.transformer_config import TransformerConfig

from verl_hpc.engines.megatron.outputs import Outputs
from verl_hpc.engines.megatron.packing import PackedRow, pack
from verl_hpc.engines.megatron.parallel import LayoutGroups
from verl_hpc.engines.megatron.shared_prefixes import num_shared, share_units, within
from verl_hpc.engines.megatron.spec import MicroBatches, PackedRotaryEmbedding
from verl_hpc.engines.protocol import NOTHING_MORE, Wanted
from verl_hpc.layout.megatron import Backend
from verl_hpc.planner.balance import attention_cost, micro_batches
from verl_hpc.planner.pipeline_fill import dealt_to, wanted


@dataclass(frozen=True)
class Plan:
    """How sequences are cut into micro-batches."""

    bins: Sequence[Sequence[int]]
    """Indices of each micro-batch's sequences."""
    shared: Sequence[int]
    """Tokens that each sequence shares with the one before it."""


class Passes:
    """Runs this rank's chunks over sequences.

    Args:
        config: of the chunks.
        chunks: this rank's, as they are called.
        outputs: of the last stage.
        groups: of the layout.
        backend: what the layers are of.
        max_tokens: of a micro-batch.
        row_multiple: what a micro-batch's tokens are padded to a multiple of.
    """

    def __init__(
        self,
        config: TransformerConfig,
        chunks: Sequence[torch.nn.Module],
        outputs: Outputs,
        groups: LayoutGroups,
        *,
        backend: Backend,
        max_tokens: int,
        row_multiple: int,
    ) -> None:
        self._chunks, self._outputs = list(chunks), outputs
        self._max_tokens, self._row_multiple = max_tokens, row_multiple
        # An interleaved pipeline takes micro-batches by the number of its stages.
        layout = groups.layout
        self._bin_multiple = layout.pp if layout.vpp > 1 else 1
        self._groups, self._hidden_size = groups, config.hidden_size
        self._is_local = backend == "local"
        # Log-probs widen the logits chunk by chunk; all of them at once would be gigabytes.
        self._options = {"fp32_output": False} if config.bf16 else {}
        self.device = torch.device("cpu" if config.use_cpu_initialization else "cuda")

    def plan(self, sequences: Sequence[torch.Tensor], together: int = 1) -> Plan:
        """What each micro-batch is of; so many neighbours are never parted.

        In a pipeline all replicas get the same number of them, as they will wait for each other:
        every rank of the layout calls it. Transformer Engine's attention takes a row as it is,
        whose sequences share no tokens.
        """
        lengths, most = [len(s) for s in sequences], self._max_tokens
        stages = self._groups.layout.pp
        if stages > 1:
            # Small enough for as many micro-batches as fill the pipeline.
            most = min(most, sum(lengths) // max(wanted(lengths, stages), 1) + 1)
        shared = num_shared(sequences) if self._is_local else [0] * len(sequences)
        units, sizes = share_units(lengths, shared, most, together)
        found = micro_batches(sizes, self._max_tokens, self._bin_multiple)
        if stages > 1:
            count = self._full(len(found), wanted(sizes, stages))
            costs = [
                self._cost([lengths[i] for i in u], n) for u, n in zip(units, sizes, strict=True)
            ]
            found = dealt_to(count, found, sizes, costs, self._max_tokens)
        return Plan([[i for unit in chosen for i in units[unit]] for chosen in found], shared)

    def _cost(self, lengths: Sequence[int], row_length: int) -> float:
        """Of sequences that are so many tokens in a row: attention reads shared ones for each."""
        whole = sum(attention_cost(length, self._hidden_size) for length in lengths)
        return whole - (sum(lengths) - row_length)

    def _full(self, needed: int, fills: int) -> int:
        """So many micro-batches as are needed, and as fill the pipeline, on all replicas."""
        if self._groups.layout.dp > 1:
            # The largest need, and of what would fill the least, for which none is empty.
            counts = torch.tensor([needed, -fills])
            dist.all_reduce(counts, dist.ReduceOp.MAX, group=self._groups.dp_gloo)
            needed, fills = int(counts[0]), -int(counts[1])
        count = max(needed, fills)
        return count + -count % self._bin_multiple

    def run(
        self,
        sequences: Sequence[torch.Tensor],
        plan: Plan,
        temperature: float,
        consume: Callable[..., Any],
        *,
        forward_only: bool,
        wanted: Wanted = NOTHING_MORE,
    ) -> list[Any]:
        """Send all micro-batches through the pipeline; `consume` gets (indices, outputs) on the
        last stage, and what it returned for each comes back there."""
        work = []
        for indices in plan.bins:
            row = self._pack(sequences, indices, plan.shared)
            ticket = MicroBatches.register(row) if self._is_local else None
            work.append((indices, row, ticket))

        def forward_step(batches: Iterator[Any], model: torch.nn.Module) -> tuple[Any, Any]:
            indices, row, ticket = next(batches)
            output = self._forward(model, row, ticket)

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

    def _pack(
        self, sequences: Sequence[torch.Tensor], indices: Sequence[int], shared: Sequence[int]
    ) -> PackedRow:
        # An interleaved pipeline may need more micro-batches than there are sequences.
        chosen = [sequences[i].to(self.device) for i in indices]
        empty = torch.zeros(1, dtype=torch.int64, device=self.device)
        if not chosen:
            return pack([empty], self._row_multiple)
        return pack(chosen, self._row_multiple, within(indices, shared))

    def _forward(
        self, model: torch.nn.Module, row: PackedRow, ticket: torch.Tensor | None
    ) -> torch.Tensor:
        if self._is_local:
            rotary: PackedRotaryEmbedding = _unwrap(model).rotary_pos_emb
            rotary.positions = row.positions
            return model(row.tokens, row.positions, ticket, **self._options)
        from megatron.core.packed_seq_params import PackedSeqParams

        starts = row.cumulative_lengths
        packed = PackedSeqParams(
            qkv_format="thd",
            cu_seqlens_q=starts,
            cu_seqlens_kv=starts,
            max_seqlen_q=max(row.lengths),
            max_seqlen_kv=max(row.lengths),
        )
        return model(row.tokens, row.positions, None, packed_seq_params=packed, **self._options)


def _unwrap(model: torch.nn.Module) -> Any:
    while hasattr(model, "module"):
        model = model.module
    return model
