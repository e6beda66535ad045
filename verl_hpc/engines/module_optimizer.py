"""AdamW on float32 master weights of modules of one process."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch

from verl_hpc.config.model import OptimizerConfig
from verl_hpc.engines.adamw import AdamW
from verl_hpc.errors import ConfigError, NotFiniteError


class ModuleAdamW(AdamW):
    """AdamW at a constant learning rate; updated master weights are copied to the parameters.

    Args:
        parameters: the module's parameters by logical name.
        settings: constant learning rate and so on.

    Raises:
        ConfigError: see `ModuleEngine`.
    """

    def __init__(
        self, parameters: Mapping[str, torch.nn.Parameter], settings: OptimizerConfig
    ) -> None:
        for name in ("schedule", "warmup_steps", "decay_steps", "on_nonfinite"):
            value = getattr(settings, name)
            if value != OptimizerConfig.model_fields[name].default:
                raise ConfigError(
                    f"optimizer.{name} = {value}: a module in one process is trained at a constant "
                    "learning rate, and a loss that is not finite ends it; leave it out, or train "
                    "by `python -m verl_hpc train`"
                )
        self._parameters = parameters
        super().__init__(settings, _masters(parameters))

    def take_weights(self) -> None:
        for name, master in self.masters.items():
            master.data.copy_(self._parameters[name].detach())

    def restore(self, num_steps: int) -> None:
        super().restore(num_steps)
        self._give_weights()

    def update(self) -> float:
        """Update with the parameters' gradients; return the norm before clipping."""
        for name, master in self.masters.items():
            gradient = self._parameters[name].grad
            # One that had no part in the loss: its moments go on all the same.
            master.grad = torch.zeros_like(master) if gradient is None else gradient.float()
        norm = self.norm()
        if not math.isfinite(norm):
            raise NotFiniteError(f"the gradient's norm is {norm}; the weights are as they were")
        self.step(norm)
        self._give_weights()
        for name, master in self.masters.items():
            master.grad = self._parameters[name].grad = None
        return float(norm)

    def _give_weights(self) -> None:
        for name, master in self.masters.items():
            if master is not self._parameters[name]:
                self._parameters[name].data.copy_(master.detach())


def _masters(parameters: Mapping[str, torch.nn.Parameter]) -> dict[str, torch.nn.Parameter]:
    """Return float32 master weights: the parameters themselves if they are float32, else copies."""
    return {
        name: p if p.dtype == torch.float32 else torch.nn.Parameter(p.detach().float())
        for name, p in parameters.items()
    }
