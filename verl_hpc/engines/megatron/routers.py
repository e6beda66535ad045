"""How evenly a mixture's routers choose experts: losses, the update of their bias, the metric.

Megatron-core's own losses are computed per micro-batch and rank, padding included, so they depend
on the layout. These are sums over the sequences of an update, on whichever ranks they are::

    seq_aux_loss   mean over sequences of E / (k L^2) sum_i (tokens sent to i) (sum of p_i)
    z_loss         mean over tokens of logsumexp(logits)^2

with E experts, k per token, L tokens of a sequence and p the softmax over all experts, or their
sigmoids divided by the sum of these; each is summed over layers. A token is sent by its scores
alone in the first, without groups and bias. After an update the bias of each expert changes by

    bias_update_rate * sign(mean load of the layer's experts - its own load)

with the load in tokens that groups and bias sent. Sources: DeepSeek-V3 (arXiv 2412.19437, section
2.1.2, equations 16 to 20), where the first is 1 if all experts are equally likely; ST-MoE (arXiv
2202.08906, equation 5).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from megatron.core.transformer.moe.moe_utils import MoEAuxLossAutoScaler
from megatron.core.transformer.transformer_config import TransformerConfig

from verl_hpc.config.model import RouterConfig
from verl_hpc.engines.megatron.expert_choice import best_experts
from verl_hpc.engines.megatron.parallel import MegatronGroups
from verl_hpc.engines.megatron.rows import MicroBatches
from verl_hpc.engines.shared.packing import PackedRow, to_device


class _Tokens(NamedTuple):
    """Real tokens of a row, repeated for each sequence that contains them."""

    places: torch.Tensor
    """(N,) int64: position in this rank's part of the row, 0 if it is in another rank's."""
    here: torch.Tensor
    """(N,) float32: 1 where the token is in this rank's part, else 0."""
    sequences: torch.Tensor
    """(N,) int64: index of the sequence."""
    lengths: torch.Tensor
    """(sequences,) float32: tokens of each sequence over all ranks."""


class Routers:
    """The routers of one engine that trains.

    Args:
        chunks: this rank's chunks, wrapped or not.
        config: Megatron-core's settings.
        settings: None adds nothing.
        groups: the layout's process groups.
    """

    def __init__(
        self,
        chunks: Sequence[torch.nn.Module],
        config: TransformerConfig,
        settings: RouterConfig | None,
        groups: MegatronGroups,
    ) -> None:
        self._num_experts = int(config.num_moe_experts or 0)
        self._chosen = int(config.moe_router_topk)
        self._sigmoid = config.moe_router_score_function == "sigmoid"
        self._limits = config.moe_router_num_groups, config.moe_router_group_topk
        self._num_dense = config.moe_layer_freq.count(0)
        self._settings, self._groups = settings, groups
        self._num_sequences, self._num_tokens = 1, 1
        self._row: PackedRow | None = None
        self._tokens: dict[int, _Tokens] = {}
        self._sums = torch.zeros(config.num_layers, self._num_experts + 2)
        self._biases: dict[int, torch.Tensor] = {}
        """Biases of this rank's routers by layer."""
        for chunk in chunks:
            for layer in chunk.modules():
                router = getattr(getattr(layer, "mlp", None), "router", None)
                if router is not None:
                    layer.register_forward_pre_hook(self._enter, with_kwargs=True)
                    self._watch(router, layer.layer_number - 1)
                    if router.expert_bias is not None:
                        self._biases[layer.layer_number - 1] = router.expert_bias

    def begin(self, sequences: Sequence[torch.Tensor], device: torch.device) -> None:
        """Start an update, before its micro-batches; all ranks of the layout call it together.

        Args:
            sequences: those of this rank's replica.
            device: device of the chunks.
        """
        self._tokens.clear()
        self._sums = torch.zeros(self._sums.shape, device=device)
        counts = torch.tensor([len(sequences), sum(len(s) for s in sequences)])
        if self._groups.layout.num_replicas > 1:
            dist.all_reduce(counts, group=self._groups.replicas_gloo)
        self._num_sequences, self._num_tokens = counts.tolist()

    def end(self) -> dict[str, float]:
        """Return the update's metrics, equal on all ranks of the layout, which call it together.

        Returns:
            `expert_load`: tokens of the fullest expert over the mean of experts, averaged over
            layers. If set, also `seq_aux_loss` and `z_loss`, without their coefficients, averaged
            over layers.
        """
        self._tokens.clear()
        self._row = None
        dist.all_reduce(self._sums, group=self._groups.everyone)
        counts, losses = self._sums[self._num_dense :].tensor_split((-2,), dim=1)
        load = counts.amax(1) / counts.mean(1).clamp(min=1.0)
        load_mean, seq_aux_loss, z_loss = torch.cat([load[:, None], losses], 1).mean(0).tolist()
        metrics = {"expert_load": load_mean}
        if self._settings is not None and self._settings.seq_aux_loss:
            metrics["seq_aux_loss"] = seq_aux_loss
        if self._settings is not None and self._settings.z_loss:
            metrics["z_loss"] = z_loss
        return metrics

    def balance(self) -> None:
        """Change the biases of this rank's routers by the loads of the update that has ended."""
        rate = self._settings.bias_update_rate if self._settings is not None else 0.0
        for layer, bias in self._biases.items():
            load = self._sums[layer, :-2]
            bias.add_((load.mean() - load).sign(), alpha=rate)

    def _enter(self, layer: torch.nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
        """Remember the row that a layer computes, recomputation included."""
        del layer, args
        self._row = MicroBatches.of_call(kwargs).row

    def _watch(self, router: Any, layer: int) -> None:
        routing = router.routing

        def watched(logits: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            # Where nothing is differentiated it is not yet, or not, a part of an update.
            if router.training and torch.is_grad_enabled():
                logits = self._count(layer, logits)
            return routing(logits, *args, **kwargs)

        router.routing = watched

    def _count(self, layer: int, logits: torch.Tensor) -> torch.Tensor:
        """Add a layer's (T/cp/tp, 1, E) logits to the sums; return them with the losses attached to
        their graph."""
        assert self._row is not None
        if not self._row.num_sequences:  # padding that keeps step with other ranks
            return logits
        tokens = self._of_row(self._row, logits.device)
        mine = logits.view(-1, self._num_experts).float().index_select(0, tokens.places)
        sums = self._sums[layer]
        sums[:-2].add_(_marked(self._choice(layer, mine), tokens.here, mine).sum(0))
        settings, losses = self._settings, []
        if settings is not None and settings.seq_aux_loss:
            chosen = _marked(mine.topk(self._chosen).indices, tokens.here, mine)
            loss = self._sequence_loss(self._shares(mine), chosen, tokens) / self._num_sequences
            sums[-2] += loss.detach()
            losses.append(settings.seq_aux_loss * loss)
        if settings is not None and settings.z_loss:
            loss = (mine.logsumexp(-1).square() * tokens.here).sum() / self._num_tokens
            sums[-1] += loss.detach()
            losses.append(settings.z_loss * loss)
        if not losses:
            return logits
        attached: torch.Tensor = MoEAuxLossAutoScaler.apply(logits, torch.stack(losses).sum())
        return attached

    def _choice(self, layer: int, logits: torch.Tensor) -> torch.Tensor:
        """Return the experts that a layer's router sends (N, E) logits to, (N, k) int64."""
        if not self._sigmoid:
            return logits.topk(self._chosen).indices
        scores = logits.detach().sigmoid() + self._biases.get(layer, 0.0)
        return best_experts(scores, self._chosen, *self._limits)[1]

    def _shares(self, logits: torch.Tensor) -> torch.Tensor:
        """Return (N, E) scores that sum to one."""
        if not self._sigmoid:
            return logits.softmax(-1)
        scores = logits.sigmoid()
        return scores / scores.sum(-1, keepdim=True)

    def _sequence_loss(
        self, probs: torch.Tensor, chosen: torch.Tensor, tokens: _Tokens
    ) -> torch.Tensor:
        """Return this rank's part of seq_aux_loss, summed over sequences, () float32."""
        empty = probs.new_zeros(len(tokens.lengths), self._num_experts)
        counts = empty.index_add(0, tokens.sequences, chosen)
        if self._groups.layout.tp * self._groups.layout.cp > 1:
            dist.all_reduce(counts, group=self._groups.tp_cp)
        sums = empty.index_add(0, tokens.sequences, probs * tokens.here[:, None])
        scale = self._num_experts / (self._chosen * tokens.lengths.square())
        return ((counts * sums).sum(1) * scale).sum()

    def _of_row(self, row: PackedRow, device: torch.device) -> _Tokens:
        tokens = self._tokens.get(id(row))
        if tokens is None:
            tokens = self._tokens[id(row)] = _tokens(
                row, self._groups.tp.rank(), self._groups.layout.tp, device
            )
        return tokens


def _marked(experts: torch.Tensor, here: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Return (N, E) float32 that is 1 at the (N, k) experts of tokens that are here, else 0."""
    return torch.zeros_like(like).scatter_(1, experts, here[:, None].expand_as(experts))


def _tokens(row: PackedRow, rank: int, num_ranks: int, device: torch.device) -> _Tokens:
    """Return the tokens of a tensor-parallel rank, which has a chunk of the row (sequence
    parallelism)."""
    row_places = torch.arange(row.tokens.shape[1], device=row.tokens.device)
    # Positions in the whole row of each sequence's tokens, and of this rank's tokens.
    of_sequences = row.split(row_places)
    lengths = [len(places) for places in of_sequences]
    on_device = to_device(torch.tensor(lengths), row_places.device)
    mine = row.local(row_places).chunk(num_ranks)[rank]
    # Inverse of `mine`: position in this rank's part, -1 for other ranks' tokens.
    here = torch.full_like(row_places, -1).index_copy(0, mine, row_places[: len(mine)])
    places = here[torch.cat(of_sequences)]
    numbers = torch.arange(len(lengths), device=row_places.device)
    # To know how many tokens are here the host would have to wait for the device.
    sequences = numbers.repeat_interleave(on_device, output_size=sum(lengths))
    parts = places.clamp(min=0), places >= 0, sequences, on_device
    of_row, are_here, sequences, on_device = (part.to(device) for part in parts)
    return _Tokens(of_row, are_here.float(), sequences, on_device.float())
