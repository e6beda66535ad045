"""Megatron-core's distributed optimizer, its schedule, and its state as named tensors.

The state is sharded over data-parallel ranks: each owns a flat range of every local parameter.
Those ranges are published as regions of logical tensors, so that a checkpoint opens in any layout.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
import torch.distributed as dist
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.optimizer import OptimizerConfig as MegatronOptimizerConfig
from megatron.core.optimizer import clip_grads, get_megatron_optimizer
from megatron.core.optimizer.clip_grads import clip_grad_by_total_norm_fp32
from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer
from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler
from megatron.core.transformer.transformer_config import TransformerConfig
from megatron.core.utils import local_multi_tensor_l2_norm

from verl_hpc.config.model import OptimizerConfig
from verl_hpc.engines.guarded_step import refuse_norm
from verl_hpc.engines.megatron.parallel import gathering_within
from verl_hpc.engines.protocol import STATE_KINDS
from verl_hpc.layout.box import Box, View, flat_range_boxes, row_major_strides
from verl_hpc.layout.shard_map import Region


def wrap_data_parallel(
    config: TransformerConfig, chunks: list[torch.nn.Module]
) -> list[DistributedDataParallel]:
    """Wrap chunks with contiguous parameter and gradient buffers, gradients in float32."""
    on_gpu = torch.cuda.is_available()
    settings = DistributedDataParallelConfig(
        grad_reduce_in_fp32=True,
        use_distributed_optimizer=True,
        overlap_grad_reduce=on_gpu,
        # Gathered right after the step: resharding reads the parameters next.
        overlap_param_gather=False,
    )
    return [
        DistributedDataParallel(config, settings, chunk, disable_bucketing=not on_gpu or i > 0)
        for i, chunk in enumerate(chunks)
    ]


@dataclass(frozen=True)
class OwnedRange:
    """The flat range of one local parameter that this rank's optimizer owns."""

    name: str
    """Local name of the parameter, as in its shard map."""
    start: int
    stop: int
    main: torch.Tensor
    """Master weights of the range, (stop - start,) float32."""


def l2_norm(
    chunk_size: int, noop_flag: torch.Tensor, lists: Sequence[list[torch.Tensor]], *_: Any
) -> tuple[torch.Tensor, None]:
    """Norm of all tensors of a list, (1,) float32 on their device, with the interface of Apex's
    `multi_tensor_l2norm`.

    Megatron-core's own, where neither Transformer Engine nor Apex is installed, reads the norm of
    every tensor from a GPU, and waits for each (`local_multi_tensor_l2_norm`, 0.16.1).
    """
    del chunk_size, noop_flag
    (tensors,) = lists
    return torch.linalg.vector_norm(torch.stack(torch._foreach_norm(tensors))).view(1), None


class Optimizer:
    """Adam over the ranges this rank owns.

    Args:
        settings: learning rate, schedule and so on.
        chunks: wrapped model chunks.
        names: local name of every parameter.
        dtype: element type of the parameters.
        group: all ranks of the layout.
    """

    def __init__(
        self,
        settings: OptimizerConfig,
        chunks: list[DistributedDataParallel],
        names: Mapping[torch.nn.Parameter, str],
        dtype: torch.dtype,
        group: dist.ProcessGroup,
    ) -> None:
        self.settings = settings
        if clip_grads.l2_norm_impl is local_multi_tensor_l2_norm:
            clip_grads.l2_norm_impl = l2_norm
        with gathering_within(group):
            self._optimizer = get_megatron_optimizer(_megatron_config(settings, dtype), chunks)
        self._shards: list[DistributedOptimizer] = self._optimizer.chained_optimizers
        """One optimizer, or a separate one for experts if their replicas differ from the
        others'."""
        for shard in self._shards:
            if isinstance(shard.optimizer, torch.optim.AdamW):
                _fuse(shard.optimizer)
        self._scheduler = schedule(self._optimizer, settings)
        self._names = names

    def zero_grad(self) -> None:
        self._optimizer.zero_grad()

    def step(self) -> float:
        """Clip, update, advance the schedule; every rank must call it.

        Returns:
            The global gradient norm before clipping.

        Raises:
            TrainingError: the gradient is not finite; the weights are as they were.
        """
        self._optimizer.prepare_grads()
        norm = self._optimizer.get_grad_norm()
        refuse_norm(norm)
        self._clip(norm)
        # Not step(), which would prepare the gradients and compute their norm once more.
        self._optimizer.step_with_ready_grads()
        self._scheduler.step(increment=1)
        return float(norm)

    def _clip(self, norm: float) -> None:
        for shard in self._shards:
            if parameters := shard.get_parameters():
                clip_grad_by_total_norm_fp32(
                    parameters,
                    max_norm=shard.config.clip_grad,
                    total_norm=norm,
                    use_decoupled_grad=shard.config.use_precision_aware_optimizer_no_fp8_or_ds_fp8,
                )

    @property
    def learning_rate(self) -> float:
        """Learning rate of the next step."""
        return float(self._optimizer.param_groups[0]["lr"])

    @property
    def num_steps(self) -> int:
        return int(self._scheduler.num_steps)

    def take_weights(self) -> None:
        """Update the master weights from the model's parameters after those were set from
        outside."""
        self._optimizer.reload_model_params()

    def owned_ranges(self) -> Iterator[OwnedRange]:
        """Yield the ranges this rank owns, in the order of its optimizers' parameters."""
        for shard in self._shards:
            yield from self._owned_by(shard)

    def _owned_by(self, shard: DistributedOptimizer) -> Iterator[OwnedRange]:
        pairs = (
            (shard.model_fp32_groups, shard.shard_fp32_groups),
            (shard.model_float16_groups, shard.shard_fp32_from_float16_groups),
        )
        for models, mains in pairs:
            for model_group, main_group in zip(models, mains, strict=True):
                for parameter, main in zip(model_group, main_group, strict=True):
                    owned = shard._get_model_param_range_map(parameter)["param"]
                    yield OwnedRange(self._names[parameter], owned.start, owned.end, main)

    def state_tensors(self) -> dict[str, torch.Tensor]:
        self._create_moments()
        tensors: dict[str, torch.Tensor] = {}
        for shard in self._shards:
            for owned in self._owned_by(shard):
                state = shard.optimizer.state[owned.main]
                tensors[f"main/{owned.name}"] = owned.main.detach()
                for moment in STATE_KINDS[1:]:
                    tensors[f"{moment}/{owned.name}"] = state[moment]
        return tensors

    def owned(self, region: Region) -> list[tuple[Box, View]]:
        start, stop = self._ranges.get(region.view.name, (0, 0))
        return list(_owned_parts(region, start, stop))

    @cached_property
    def _ranges(self) -> dict[str, tuple[int, int]]:
        return {owned.name: (owned.start, owned.stop) for owned in self.owned_ranges()}

    def restore(self, num_steps: int) -> None:
        self._create_moments()
        self._scheduler.num_steps = 0
        self._scheduler.step(increment=num_steps)
        for shard in self._shards:
            _set_steps(shard, num_steps)

    def _create_moments(self) -> None:
        for shard in self._shards:
            if shard.optimizer.state:
                continue
            owned = list(self._owned_by(shard))
            before = [one.main.detach().clone() for one in owned]
            # Adam makes its moments in its first step; there is no public way to make them without.
            shard._init_optimizer_states_with_dummy_values()
            for one, value in zip(owned, before, strict=True):
                one.main.detach().copy_(value)
                for key in STATE_KINDS[1:]:
                    shard.optimizer.state[one.main][key].zero_()
            _set_steps(shard, 0)  # the dummy step was counted


def _set_steps(shard: DistributedOptimizer, steps: int) -> None:
    """Set Adam's step count."""
    for group in shard.optimizer.param_groups:
        if "step" in group:  # Transformer Engine's and Apex's Adam
            group["step"] = steps
        for parameter in group["params"]:
            state = shard.optimizer.state[parameter]
            if "step" in state:  # PyTorch's
                state["step"].fill_(steps)


def _megatron_config(settings: OptimizerConfig, dtype: torch.dtype) -> MegatronOptimizerConfig:
    moments: dict[str, Any] = {}
    if settings.moments != "float32":
        kind = getattr(torch, settings.moments)
        moments = {"use_precision_aware_optimizer": True}
        moments |= {"exp_avg_dtype": kind, "exp_avg_sq_dtype": kind}
        # With a recipe named, master weights stay with Megatron-core (0.16.1), as with float32.
        # Transformer Engine's would keep their values when weights are loaded.
        moments["fp8_recipe"] = "blockwise"
    return MegatronOptimizerConfig(
        **moments,
        optimizer="adam",
        lr=settings.lr,
        min_lr=settings.min_lr,
        weight_decay=settings.weight_decay,
        bf16=dtype == torch.bfloat16,
        params_dtype=dtype,
        adam_beta1=settings.beta1,
        adam_beta2=settings.beta2,
        adam_eps=settings.epsilon,
        clip_grad=settings.clip_grad or math.inf,
        use_distributed_optimizer=True,
    )


def _fuse(optimizer: torch.optim.AdamW) -> None:
    """Let PyTorch's AdamW update in one kernel; its default runs a dozen, and on GPUs needs
    temporaries as large as the weights.

    Megatron-core has no setting for this, but PyTorch reads the flag at every step.
    """
    for group in optimizer.param_groups:
        group["fused"], group["foreach"] = True, False


def _owned_parts(region: Region, start: int, stop: int) -> Iterator[tuple[Box, View]]:
    """Yield the boxes of a parameter's region within its flat range `[start, stop)`."""
    order = region.view.order
    back = [order.index(dim) for dim in range(len(order))]
    shape = tuple(region.box.shape[dim] for dim in order)
    assert [*row_major_strides(shape)] == [region.view.strides[d] for d in order], region
    # The range counts the parameter's elements; the region is some of its rows, from `first` on.
    first = region.view.offset
    low = max(start - first, 0)
    high = min(stop - first, region.box.num_elements)
    offset = first + low - start
    for piece in flat_range_boxes(shape, low, high):
        strides = row_major_strides(piece.shape)
        part = Box(*(tuple(end[dim] for dim in back) for end in (piece.start, piece.stop)))
        view = View(region.view.name, offset, tuple(strides[dim] for dim in back))
        yield part.shifted(region.box.start), view
        offset += part.num_elements


def schedule(optimizer: Any, settings: OptimizerConfig) -> OptimizerParamScheduler:
    """Make a learning-rate schedule for an optimizer with `param_groups`."""
    # Megatron-core needs a decay horizon even for a constant rate.
    decay_steps = settings.decay_steps or max(settings.warmup_steps + 1, 1)
    return OptimizerParamScheduler(
        optimizer,
        init_lr=0.0,
        max_lr=settings.lr,
        min_lr=settings.min_lr,
        lr_warmup_steps=settings.warmup_steps,
        lr_decay_steps=decay_steps,
        lr_decay_style=settings.schedule,
        start_wd=settings.weight_decay,
        end_wd=settings.weight_decay,
        wd_incr_steps=decay_steps,
        wd_incr_style="constant",
    )
