"""Low-rank adapters of Megatron-core's linear layers (LoRA, arXiv 2106.09685).

Tensor-parallel ranks exchange only A x, a few numbers per token::

    rows split      x (whole, or this rank's tokens)  ->  A x, gathered or copied  ->  B, its rows
    columns split   x (its columns)  ->  A x, summed or scattered to its tokens    ->  B, whole
    of an expert    as it is: tokens are gathered before, and sums made behind, by the dispatcher

A factor that a rank holds whole gets gradients from its own tokens only (of an expert, from its own
rows only); these are summed over the ranks that share it after all micro-batches.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state, tensor_parallel
from megatron.core.transformer.transformer_config import TransformerConfig
from torch.nn.functional import linear, rms_norm

from verl_hpc.layout.adapters import LocalAdapter
from verl_hpc.layout.megatron import is_expert


class Adapter:
    """The adapters of one linear layer, registered in it as parameters `lora_A` and `lora_B`.

    Args:
        where: which rows of the layer's weight have which adapter.
        module: the layer.
        rank: rank of each adapter.
        scale: factor of B A.
        group: tensor-parallel ranks that share the layer; None for an expert.
        sequence_parallel: whether each of them has some of the tokens.
    """

    def __init__(
        self,
        where: LocalAdapter,
        module: torch.nn.Module,
        rank: int,
        scale: float,
        group: dist.ProcessGroup | None,
        sequence_parallel: bool,
    ) -> None:
        self.where, self.scale = where, scale
        self._module, self._group, self._sequence_parallel = module, group, sequence_parallel
        weight = module.get_parameter("weight")
        num_targets = len(where.targets)
        self._num_targets, self._num_outputs = num_targets, weight.shape[0]

        def parameter(*shape: int) -> torch.nn.Parameter:
            return torch.nn.Parameter(weight.new_zeros(shape))

        self.a = parameter(num_targets * rank, where.num_inputs)
        self.b = parameter(where.num_rows, rank)
        module.register_parameter("lora_A", self.a)
        module.register_parameter("lora_B", self.b)
        place = torch.cat([torch.full((j - i,), index) for index, i, j in where.blocks])
        owner = place[:, None] == torch.arange(num_targets * rank) // rank
        self._owner = owner.to(weight.device) if num_targets > 1 else None
        rows = torch.cat([torch.arange(i, j) for _, i, j in where.blocks])
        self._rows = rows.to(weight.device) if len(rows) < weight.shape[0] else None

    @property
    def shared(self) -> torch.nn.Parameter:
        """The factor that every tensor-parallel rank of the layer holds whole."""
        return self.b if self.where.splits_columns else self.a

    def spread_b(self) -> torch.Tensor:
        """Return (outputs, targets x rank): each row's B, in the columns of its own target's A."""
        b: torch.Tensor = self.b
        if self._owner is not None:
            b = b.repeat(1, self._num_targets) * self._owner
        if self._rows is not None:
            b = b.new_zeros(self._num_outputs, b.shape[1]).index_copy(0, self._rows, b)
        return b

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return the adapters' contribution to the layer's output."""
        if hasattr(self._module, "layer_norm_weight"):  # Transformer Engine norms inside the layer
            size = x.shape[-1:]
            x = rms_norm(x, size, self._module.layer_norm_weight, self._module.eps)
        return linear(self._shared_among(linear(x, self.a)), self.spread_b()) * self.scale

    def _shared_among(self, hidden: torch.Tensor) -> torch.Tensor:
        """Send A x from the ranks that computed it to those that need it."""
        group = self._group
        if group is None or group.size() == 1:
            return hidden
        sequence, whole = (
            (
                tensor_parallel.reduce_scatter_to_sequence_parallel_region,
                tensor_parallel.reduce_from_tensor_model_parallel_region,
            )
            if self.where.splits_columns
            else (
                tensor_parallel.gather_from_sequence_parallel_region,
                tensor_parallel.copy_to_tensor_model_parallel_region,
            )
        )
        return (sequence if self._sequence_parallel else whole)(hidden, group=group)


class Adapters:
    """All adapters of an engine's chunks; the other parameters are frozen.

    Args:
        config: Megatron-core's settings.
        chunks: not yet wrapped for data parallelism.
        found: the adapters of this rank.
        rank, scale: rank of every adapter, and the factor of its B A.
        group: tensor-parallel ranks.
        trains: names of further parameters to train, without their chunk, such as a value head's.
    """

    def __init__(
        self,
        config: TransformerConfig,
        chunks: Sequence[torch.nn.Module],
        found: Sequence[LocalAdapter],
        rank: int,
        scale: float,
        group: dist.ProcessGroup,
        trains: Sequence[str] = (),
    ) -> None:
        self._enabled = True
        self.by_weight: dict[str, Adapter] = {}
        """Adapters by the local name of their weight."""
        modules = {}
        for index, chunk in enumerate(chunks):
            for name, parameter in chunk.named_parameters():
                parameter.requires_grad_(name.replace("module.", "") in trains)
            for name, module in chunk.named_modules():
                modules[f"chunk{index}.{name.replace('module.', '')}"] = module
            if config.recompute_granularity is not None:
                _let_gradients_begin(chunk)
        for where in found:
            module = modules[where.weight.removesuffix(".weight")]
            expert = is_expert(where.weight)
            adapter = Adapter(
                where, module, rank, scale, None if expert else group, config.sequence_parallel
            )
            # Megatron-core sums the gradients of what is marked so over the tensor-parallel ranks.
            adapter.shared.sequence_parallel = config.sequence_parallel and not expert
            module.register_forward_hook(self._adding(adapter))
            self.by_weight[where.weight] = adapter

    def _adding(self, adapter: Adapter) -> Any:
        def add(_: torch.nn.Module, inputs: tuple[Any, ...], output: Any) -> Any:
            if not self._enabled:
                return output
            # A layer gives its bias apart.
            found, bias = output
            return found + adapter(inputs[0]), bias

        return add

    @contextmanager
    def disabled(self) -> Iterator[None]:
        """Compute without adapters inside this context."""
        self._enabled = False
        try:
            yield
        finally:
            self._enabled = True

    @property
    def of_experts(self) -> list[Adapter]:
        return [adapter for name, adapter in self.by_weight.items() if is_expert(name)]

    def mark_experts(self) -> None:
        """Mark factors that ranks sharing an expert hold whole: only the first rank counts their
        gradient."""
        first = parallel_state.get_expert_tensor_parallel_rank() == 0
        for adapter in self.of_experts:
            adapter.shared.shared = not first

    def sum_over_experts(self) -> None:
        """Sum the gradients of factors that ranks sharing an expert hold whole, over those
        ranks."""
        group = parallel_state.get_expert_tensor_parallel_group()
        shared = [adapter.shared.main_grad for adapter in self.of_experts]
        if group.size() == 1 or not shared:
            return
        flat = torch.cat([gradient.view(-1) for gradient in shared])
        dist.all_reduce(flat, group=group)
        for gradient, part in zip(shared, flat.split([g.numel() for g in shared]), strict=True):
            gradient.view(-1).copy_(part)


def _let_gradients_begin(chunk: Any) -> None:
    """Make the embedding's output require gradients: a recomputed layer has gradients only if one
    of its inputs does, and the embedding is frozen."""
    while hasattr(chunk, "module"):
        chunk = chunk.module
    if not chunk.pre_process:
        return

    def require(_: torch.nn.Module, __: Any, output: torch.Tensor) -> torch.Tensor:
        return output.requires_grad_(True) if torch.is_grad_enabled() else output

    chunk.embedding.register_forward_hook(require)
