"""Forward and backward passes of packed micro-batches through a sharded decoder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from verl_hpc.engines.fsdp.attention import attending
from verl_hpc.engines.fsdp.build import Decoder
from verl_hpc.engines.protocol import OutputOptions
from verl_hpc.engines.shared.groups import LayoutGroups
from verl_hpc.engines.shared.micro_batches import Plan, Planner
from verl_hpc.engines.shared.outputs import Outputs
from verl_hpc.engines.shared.packing import pack
from verl_hpc.engines.shared.shared_prefixes import within


class Passes:
    """Runs a decoder over sequences, in equally many micro-batches on every rank, since each
    micro-batch gathers parameters from all ranks.

    Args:
        decoder: a decoder with sharded parameters.
        outputs: reads the head's outputs.
        groups: the layout's process groups.
        max_tokens: limit of a micro-batch.
        uses_flash: attend by FlashAttention; sequences then share no tokens.
    """

    def __init__(
        self,
        decoder: Decoder,
        outputs: Outputs,
        groups: LayoutGroups,
        *,
        max_tokens: int,
        uses_flash: bool,
    ) -> None:
        self._decoder, self._outputs, self._groups = decoder, outputs, groups
        self._uses_flash = uses_flash
        self._planner = Planner(
            groups.layout,
            decoder.model.config.hidden_size,
            max_tokens,
            not uses_flash,
            groups.largest,
            replicas_wait=True,
        )
        self.device = next(decoder.parameters()).device

    def plan(self, sequences: Sequence[torch.Tensor], together: int = 1) -> Plan:
        """See `Planner.plan`."""
        return self._planner.plan(sequences, together)

    def run(
        self,
        sequences: Sequence[torch.Tensor],
        plan: Plan,
        temperature: float,
        consume: Callable[..., Any],
        wanted: OutputOptions,
    ) -> list[Any]:
        """Run all micro-batches and return `consume(indices, outputs)` of each, None for an empty
        one. With gradients enabled `consume` must also run the backward pass."""
        results: list[Any] = []
        for indices in plan.bins:
            chosen = [sequences[i].to(self.device) for i in indices]
            # Where others have more sequences, a row of one token goes through with them.
            empty = torch.zeros(1, dtype=torch.int64, device=self.device)
            row = pack(chosen or [empty], 1, within(indices, plan.shared) if chosen else None)
            with attending(row, self._uses_flash):
                tensor = self._decoder(row.tokens, row.positions)
                if indices:
                    mine = wanted.of(indices)
                    outputs = self._outputs.read(tensor, row, temperature, mine)
                    results.append(consume(indices, outputs))
                else:
                    results.append(None)
                    if torch.is_grad_enabled():
                        (tensor.float().sum() * 0.0).backward()
        return results
