"""AdamW over a rank's shards, its schedule, and the map of its state.

Shards are float32 and their own master weights. They are regions of logical tensors, as are their
moments, so that a checkpoint opens in any layout and in the other engine.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

import torch
import torch.distributed as dist

from verl_hpc.config.model import OptimizerConfig
from verl_hpc.engines.adamw import AdamW
from verl_hpc.engines.fsdp.build import local_part
from verl_hpc.engines.guarded_step import refuse_norm
from verl_hpc.layout.box import Box, View
from verl_hpc.layout.shard_map import Region


class Schedule(Protocol):
    """Sets the learning rate of every step."""

    num_steps: int

    def step(self, increment: int) -> None:
        """Advance by `increment` steps."""


MakeSchedule = Callable[[torch.optim.Optimizer, OptimizerConfig], Schedule]


class ShardedAdam:
    """AdamW on one rank's rows of every parameter.

    Args:
        settings: learning rate, schedule and so on.
        parameters: sharded, by name.
        group: the ranks that shard one copy of them.
        schedule: makes the learning-rate schedule.
        all_train: every output depends on every parameter, as where a family has a layer table.
    """

    def __init__(
        self,
        settings: OptimizerConfig,
        parameters: Mapping[str, torch.nn.Parameter],
        group: dist.ProcessGroup,
        schedule: MakeSchedule,
        *,
        all_train: bool,
    ) -> None:
        self.settings, self._all_train = settings, all_train
        self._parameters, self._group = parameters, group
        locals_ = {name: local_part(p) for name, p in parameters.items()}
        self.mains = {n: torch.nn.Parameter(t) for n, t in locals_.items() if t.numel()}
        """Non-empty shards of this rank, sharing the parameters' memory."""
        self._adam = AdamW(settings, self.mains)
        self._scheduler = schedule(self._adam.torch, settings)

    def zero_grad(self) -> None:
        """Free all gradients."""
        for parameter in (*self._parameters.values(), *self.mains.values()):
            parameter.grad = None

    def gradients(self) -> dict[str, torch.Tensor]:
        """Return the reduced gradients of the rows that this rank owns, float32; nothing of
        parameters that no output depends on, such as what chooses tokens for sparse attention."""
        every = {name: self._parameters[name].grad for name in self.mains}
        lost = [name for name, grad in every.items() if grad is None]
        assert not (self._all_train and lost), lost
        return {name: local_part(grad) for name, grad in every.items() if grad is not None}

    def step(self) -> float:
        """Clip, update, advance the schedule; every rank must call it.

        Returns:
            The global gradient norm before clipping.

        Raises:
            TrainingError: the gradient is not finite; the weights are as they were.
        """
        for name, gradient in self.gradients().items():
            self.mains[name].grad = gradient
        norm = self._norm()
        number = float(norm)  # before the step, for which another read would wait
        refuse_norm(number)
        self._adam.step(norm)
        self._scheduler.step(increment=1)
        return number

    def _norm(self) -> torch.Tensor:
        """Return the norm over all ranks' gradients, on the device."""
        device = next(iter(self._parameters.values())).device
        square = self._adam.norm().to(device).square()
        dist.all_reduce(square, group=self._group)
        return square.sqrt()

    @property
    def learning_rate(self) -> float:
        """Learning rate of the next step."""
        return self._adam.lr

    @property
    def num_steps(self) -> int:
        return int(self._scheduler.num_steps)

    def state_tensors(self) -> dict[str, torch.Tensor]:
        return self._adam.state_tensors()

    def owned(self, region: Region) -> list[tuple[Box, View]]:
        return [(region.box, region.view)]

    def restore(self, num_steps: int) -> None:
        self._adam.restore(num_steps)
        self._scheduler.num_steps = 0
        self._scheduler.step(increment=num_steps)
