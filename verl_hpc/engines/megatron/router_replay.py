"""Router replay: tokens go to experts that were chosen elsewhere, with this router's own weights.

A router's probabilities are those of its own scores at the chosen experts, so that it learns as
before. Megatron-core's own replay is a queue for each layer, filled in the order of the passes;
here each layer looks its experts up by the micro-batch that it was called with, which is right in
any order of a pipeline, and when a layer is computed again.

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

from verl_hpc.engines.megatron.parallel import MegatronGroups
from verl_hpc.engines.megatron.rows import MicroBatches, RoutedRow
from verl_hpc.engines.shared.packing import PackedRow


class RouterReplay:
    """The routers of this rank's chunks.

    Args:
        config: of the chunks.
        chunks: this rank's.
        groups: of the layout.
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
        """What this rank's routers need of a row; None of one that is padding alone.

        Args:
            experts: as `Wanted.experts`, of each of its sequences. Of tokens that sequences share,
                those of the first are taken.
        """
        if not experts:
            return None
        # A column more says which rows there are.
        marked = [torch.cat([e, e.new_ones(len(e), 1)], dim=-1) for e in experts]
        here = self._routed_here(row.local(row.join(marked)))
        ids = expert_ids(here[:, :-1], self._config.num_layers, self._config.moe_router_topk)
        return RoutedRow(ids[:, self._layers].contiguous(), here[:, -1] > 0)

    def _routed_here(self, of_row: torch.Tensor) -> torch.Tensor:
        """Of (T, ...) of a rank's part of a row, what its routers see of it."""
        if not self._config.sequence_parallel:
            return of_row
        tp = self._groups.tp
        return of_row.chunk(tp.size())[tp.rank()]

    def forget_counts(self) -> None:
        for router in self._routers:
            router.counts = None

    def disagreement(self, device: torch.device) -> float:
        """Share of tokens x layers, since `forget_counts`, for which the routers would have chosen
        other experts; all ranks of the layout call it together."""
        counts = torch.zeros(2, dtype=torch.float64, device=device)
        for router in self._routers:
            if router.counts is not None:
                counts += router.counts
        dist.all_reduce(counts, group=self._groups.everyone)
        differ, total = counts.tolist()
        return differ / max(total, 1.0)


def expert_ids(rows: torch.Tensor, num_layers: int, k: int) -> torch.Tensor:
    """(t, bytes) uint8 as ids (t, layers, k): uint8, or int32 where an id is of two bytes."""
    if rows.shape[1] == 2 * num_layers * k:
        low, high = rows.int().view(len(rows), -1, 2).unbind(-1)
        rows = low + (high << 8)
    return rows.reshape(len(rows), num_layers, k)


class _Router:
    """Takes the place of Megatron-core's RouterReplay in one router."""

    def __init__(self, index: int) -> None:
        self._index = index
        """Of its layer among those of the rank."""
        self._row: RoutedRow | None = None
        self.counts: torch.Tensor | None = None
        """(2,) float64: tokens for which it would have chosen others, and all of them."""

    def note(self, layer: torch.nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
        """Before a layer's forward pass, also where it is computed again."""
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
        """Scores of the experts that tokens go to, and their ids, (t, k) each; called by
        `moe_utils.topk_routing_with_score_function` with scores (t, experts)."""
        values, own = default_compute_topk(scores, topk, num_groups, group_topk)
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
