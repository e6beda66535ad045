"""Micro-batches of packed sequences through the pipeline, forward and backward."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.transformer.transformer_config import TransformerConfig

from verl_hpc.engines.megatron.outputs import Outputs
from verl_hpc.engines.megatron.packing import PackedRow, pack
from verl_hpc.engines.megatron.parallel import LayoutGroups
from verl_hpc.engines.megatron.spec import MicroBatches, PackedRotaryEmbedding
from verl_hpc.engines.protocol import NOTHING_MORE, Wanted
from verl_hpc.layout.megatron import Backend
from verl_hpc.planner.balance import attention_cost, micro_batches
from verl_hpc.planner.pipeline_fill import dealt_to, wanted


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
        self._packs_with_positions = backend == "local"
        # Log-probs widen the logits chunk by chunk; all of them at once would be gigabytes.
        self._options = {"fp32_output": False} if config.bf16 else {}
        self.device = torch.device("cpu" if config.use_cpu_initialization else "cuda")

    def bins(
        self, sequences: Sequence[torch.Tensor], together: int = 1, alike: bool = False
    ) -> list[list[int]]:
        """Indices of each micro-batch's sequences.

        Args:
            together: so many neighbours are never parted.
            alike: all replicas of a pipeline get the same number of micro-batches, as they will
                wait for each other; every rank of the layout calls it.
        """
        firsts = range(0, len(sequences), together)
        units = [[len(s) for s in sequences[i : i + together]] for i in firsts]
        lengths = [sum(unit) for unit in units]
        found = micro_batches(lengths, self._max_tokens, self._bin_multiple)
        if self._groups.layout.pp > 1:
            count = self._full(len(found), wanted(lengths, self._groups.layout.pp), alike)
            costs = [sum(attention_cost(n, self._hidden_size) for n in unit) for unit in units]
            found = dealt_to(count, found, lengths, costs, self._max_tokens)
        return [[firsts[i] + k for i in indices for k in range(together)] for indices in found]

    def _full(self, needed: int, fills: int, alike: bool) -> int:
        """So many micro-batches as are needed, and as fill the pipeline, on all replicas."""
        if alike and self._groups.layout.dp > 1:
            # The largest need, and of what would fill the least, for which none is empty.
            counts = torch.tensor([needed, -fills])
            dist.all_reduce(counts, dist.ReduceOp.MAX, group=self._groups.dp_gloo)
            needed, fills = int(counts[0]), -int(counts[1])
        count = max(needed, fills)
        return count + -count % self._bin_multiple

    def run(
        self,
        sequences: Sequence[torch.Tensor],
        bins: Sequence[Sequence[int]],
        temperature: float,
        consume: Callable[..., Any],
        *,
        forward_only: bool,
        wanted: Wanted = NOTHING_MORE,
    ) -> list[Any]:
        """Send all micro-batches through the pipeline; `consume` gets (indices, outputs) on the
        last stage, and what it returned for each comes back there."""
        rows = [self._pack(sequences, indices) for indices in bins]
        work = [
            (indices, row, MicroBatches.register(row))
            for indices, row in zip(bins, rows, strict=True)
        ]

        def forward_step(batches: Iterator[Any], model: torch.nn.Module) -> tuple[Any, Any]:
            indices, row, ticket = next(batches)
            output = self._forward(model, row, ticket)

            def finish(tensor: torch.Tensor, non_loss_data: bool = False) -> Any:
                mine = wanted.of(indices)
                outputs = self._outputs.read(tensor, row, temperature, mine) if indices else []
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

    def _pack(self, sequences: Sequence[torch.Tensor], indices: Sequence[int]) -> PackedRow:
        # An interleaved pipeline may need more micro-batches than there are sequences.
        chosen = [sequences[i].to(self.device) for i in indices]
        empty = torch.zeros(1, dtype=torch.int64, device=self.device)
        return pack(chosen or [empty], self._row_multiple)

    def _forward(
        self, model: torch.nn.Module, row: PackedRow, ticket: torch.Tensor
    ) -> torch.Tensor:
        if self._packs_with_positions:
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
