"""AdamW of torch with float32 master weights, for modules of one process."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch

from verl_hpc.config.model import OptimizerConfig
from verl_hpc.engines.protocol import STATE_KINDS
from verl_hpc.errors import ConfigError, TrainingError


def masters_of(parameters: Mapping[str, torch.nn.Parameter]) -> dict[str, torch.nn.Parameter]:
    """float32 weights that an optimizer steps on: the parameters themselves where they are."""
    return {
        name: p if p.dtype == torch.float32 else torch.nn.Parameter(p.detach().float())
        for name, p in parameters.items()
    }


class AdamW:
    """torch's AdamW on float32 master weights, with its state where a checkpoint finds it.

    Args:
        parameters: by logical name.
        settings: constant learning rate, and the like.
        masters: of the parameters, where another optimizer steps on them, too; else its own.

    Raises:
        ConfigError: as `ModuleEngine`.
    """

    def __init__(
        self,
        parameters: Mapping[str, torch.nn.Parameter],
        settings: OptimizerConfig,
        masters: Mapping[str, torch.nn.Parameter] | None = None,
    ) -> None:
        for name in ("schedule", "warmup_steps", "decay_steps", "on_nonfinite"):
            value = getattr(settings, name)
            if value != OptimizerConfig.model_fields[name].default:
                raise ConfigError(
                    f"optimizer.{name} = {value}: a module in one process is trained at a constant "
                    "learning rate, and a loss that is not finite ends it; leave it out, or train "
                    "by `python -m verl_hpc train`"
                )
        self.settings, self._parameters = settings, parameters
        self._masters = dict(masters) if masters is not None else masters_of(parameters)
        # Biases and the weights of norms do not decay.
        matrices = [p for p in self._masters.values() if p.ndim > 1]
        others = [p for p in self._masters.values() if p.ndim <= 1]
        self._optimizer = torch.optim.AdamW(
            [
                {"params": matrices, "weight_decay": settings.weight_decay},
                {"params": others, "weight_decay": 0.0},
            ],
            lr=settings.lr,
            betas=(settings.beta1, settings.beta2),
            eps=settings.epsilon,
        )
        for p in self._masters.values():
            moments = {kind: torch.zeros_like(p) for kind in STATE_KINDS[1:]}
            self._optimizer.state[p] = {"step": torch.tensor(0.0), **moments}

    @property
    def lr(self) -> float:
        """Of its next step."""
        return float(self._optimizer.param_groups[0]["lr"])

    @lr.setter
    def lr(self, lr: float) -> None:
        for group in self._optimizer.param_groups:
            group["lr"] = lr

    @property
    def tensors(self) -> Mapping[str, torch.Tensor]:
        """Flat, by the names of `state_specs`."""
        found = {f"main/{name}": p.detach() for name, p in self._masters.items()}
        for kind in STATE_KINDS[1:]:
            found |= {f"{kind}/{n}": self._optimizer.state[p][kind] for n, p in self._named()}
        return {name: tensor.view(-1) for name, tensor in found.items()}

    def take_weights(self) -> None:
        for name, master in self._named():
            master.data.copy_(self._parameters[name].detach())

    def restore(self, num_steps: int) -> None:
        """Masters and moments were filled; so many steps had been taken."""
        for name, master in self._named():
            self._optimizer.state[master]["step"].fill_(num_steps)
            self._parameters[name].data.copy_(master.detach())

    def step(self) -> float:
        """Take the gradients that are there; the norm before clipping."""
        for name, master in self._named():
            gradient = self._parameters[name].grad
            # One that had no part in the loss: its moments go on all the same.
            master.grad = torch.zeros_like(master) if gradient is None else gradient.float()
        limit = self.settings.clip_grad or math.inf
        norm = float(torch.nn.utils.clip_grad_norm_(self._masters.values(), limit))
        if not math.isfinite(norm):
            raise TrainingError(f"the gradient's norm is {norm}; the weights are as they were")
        self._optimizer.step()
        for name, master in self._named():
            if master is not self._parameters[name]:
                self._parameters[name].data.copy_(master.detach())
            master.grad = self._parameters[name].grad = None
        return norm

    def _named(self) -> list[tuple[str, torch.nn.Parameter]]:
        return list(self._masters.items())
