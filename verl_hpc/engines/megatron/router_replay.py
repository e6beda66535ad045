"""Router replay: route tokens to experts chosen elsewhere, weighted by this router's own scores.

A router's probabilities come from its own scores of the chosen experts, so it still learns.
Megatron-core's own replay has a queue per layer, filled in the order of the passes; here each layer
looks up its experts by the micro-batch it was called with, which is right in any pipeline order and
in recomputation.

Source: rollout routing replay, R3 (arXiv 2510.11370).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from megatron.core.transformer.moe.moe_layer import MoELayer
from megatron.core.transformer.transformer_config import TransformerConfig
from megatron.core.transformer.transformer_layer import TransformerLayer

from verl_hpc.engines.megatron.expert_choice import best_experts
from verl_hpc.engines.megatron.parallel import MegatronGroups
from verl_hpc.engines.megatron.rows import MicroBatches, RoutedRow
from verl_hpc.engines.shared.packing import PackedRow


class RouterReplay:
    """Replays routing in the routers of this rank's chunks.

    Args:
        config: Megatron-core's settings.
        chunks: this rank's chunks.
        groups: the layout's process groups.
    """

    def __init__(
        self, config: TransformerConfig, chunks: Sequence[torch.nn.Module], groups: MegatronGroups
    ) -> None:
        self._config, self._groups = config, groups
        self._routers: list[_Router] = []
        self._layers: list[int] = []
        for module in (m for chunk in chunks for m in chunk.modules()):
            if isinstance(module, TransformerLayer) and isinstance(module.mlp, MoELayer):
                router = _Router(len(self._routers))
                module.register_forward_pre_hook(router.note, with_kwargs=True)
                module.mlp.router.router_replay = router
                self._routers.append(router)
                self._layers.append(module.layer_number - 1)

    def row(self, row: PackedRow, experts: Sequence[torch.Tensor]) -> RoutedRow | None:
        """Return what this rank's routers need of a row; None for a row of padding only.

        Args:
            experts: `OutputOptions.experts` of each of its sequences. Tokens that sequences share
                use those of the first sequence.
        """
        if not experts:
            return None
        # A column more says which rows there are.
        marked = [torch.cat([e, e.new_ones(len(e), 1)], dim=-1) for e in experts]
        here = self._routed_here(row.local(row.join(marked)))
        ids = expert_ids(here[:, :-1], self._config.num_layers, self._config.moe_router_topk)
        return RoutedRow(ids[:, self._layers].contiguous(), here[:, -1] > 0)

    def _routed_here(self, of_row: torch.Tensor) -> torch.Tensor:
        """Return what this rank's routers see of (T, ...), its part of a row: with sequence
        parallelism a chunk."""
        if not self._config.sequence_parallel:
            return of_row
        tp = self._groups.tp
        return of_row.chunk(tp.size())[tp.rank()]

    def forget_counts(self) -> None:
        for router in self._routers:
            router.counts = None

    def disagreement(self, device: torch.device) -> float:
        """Return the share of tokens x layers, since `forget_counts`, for which the routers would
        have chosen other experts; all ranks of the layout call it together."""
        counts = torch.zeros(2, dtype=torch.float64, device=device)
        for router in self._routers:
            if router.counts is not None:
                counts += router.counts
        dist.all_reduce(counts, group=self._groups.everyone)
        differ, total = counts.tolist()
        return differ / max(total, 1.0)


def expert_ids(rows: torch.Tensor, num_layers: int, k: int) -> torch.Tensor:
    """Decode (t, bytes) uint8 to ids (t, layers, k): uint8, or int32 if an id has two bytes."""
    if rows.shape[1] == 2 * num_layers * k:
        low, high = rows.int().view(len(rows), -1, 2).unbind(-1)
        rows = low + (high << 8)
    return rows.reshape(len(rows), num_layers, k)


class _Router:
    """Replaces Megatron-core's RouterReplay in one router."""

    def __init__(self, index: int) -> None:
        self._index = index
        """Index of its layer among those of this rank."""
        self._row: RoutedRow | None = None
        self.counts: torch.Tensor | None = None
        """(2,) float64: tokens for which it would have chosen other experts, and all tokens."""

    def note(self, layer: torch.nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
        """Remember the row before a layer's forward pass, recomputation included."""
        del layer, args
        self._row = MicroBatches.of_call(kwargs).routed

    def get_replay_topk(
        self,
        scores: torch.Tensor,
        topk: int,
        num_groups: int | None,
        group_topk: int | None,
        default_compute_topk: Callable[..., tuple[torch.Tensor, torch.Tensor]],
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the scores and ids of the experts that tokens go to, (t, k) each; called by
        `moe_utils.topk_routing_with_score_function` with scores (t, experts)."""
        del default_compute_topk
        values, own = best_experts(scores, topk, num_groups, group_topk)
        row = self._row
        if row is None:
            return values, own
        given = row.experts[:, self._index].long()
        self._count(row, given, own)
        chosen = torch.where(row.is_given[:, None], given, own)
        return scores.gather(1, chosen), chosen

    def _count(self, row: RoutedRow, given: torch.Tensor, own: torch.Tensor) -> None:
        same = (given.sort(-1).values == own.sort(-1).values).all(-1)
        counts = torch.stack([(row.is_given & ~same).sum(), row.is_given.sum()]).double()
        self.counts = counts if self.counts is None else self.counts + counts
