"""PyTorch's AdamW over float32 master weights, its state as named tensors, and the optimizer of
modules of one process."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from verl_hpc.config.model import OptimizerConfig
from verl_hpc.engines.protocol import STATE_KINDS
from verl_hpc.errors import ConfigError, NotFiniteError

_MOMENTS = STATE_KINDS[1:]


class AdamW:
    """Decoupled weight decay (arXiv 1711.05101) of matrices alone: biases and norms have none.

    Args:
        settings: learning rate and so on; its schedule is the caller's.
        masters: float32, by logical name; each is one tensor, or a rank's part of it.
    """

    def __init__(
        self, settings: OptimizerConfig, masters: Mapping[str, torch.nn.Parameter]
    ) -> None:
        self.settings, self.masters = settings, masters
        decayed = [p for p in masters.values() if p.ndim > 1]
        others = [p for p in masters.values() if p.ndim <= 1]
        # Megatron-core's schedule multiplies the decay by wd_mult at every step.
        self.torch = torch.optim.AdamW(
            [
                {"params": decayed, "wd_mult": 1.0},
                {"params": others, "wd_mult": 0.0, "weight_decay": 0.0},
            ],
            lr=settings.lr,
            betas=(settings.beta1, settings.beta2),
            eps=settings.epsilon,
            weight_decay=settings.weight_decay,
            fused=True,
        )

    @property
    def lr(self) -> float:
        """Learning rate of the next step."""
        return float(self.torch.param_groups[0]["lr"])

    @lr.setter
    def lr(self, lr: float) -> None:
        for group in self.torch.param_groups:
            group["lr"] = lr

    def norm(self) -> torch.Tensor:
        """Return the norm over all gradients of the masters, ()."""
        return get_total_norm([p.grad for p in self.masters.values() if p.grad is not None])

    def step(self, norm: torch.Tensor) -> None:
        """Clip the masters' gradients by `optimizer.clip_grad`, and update the masters.

        Args:
            norm: over all gradients, those of other ranks included.
        """
        if self.settings.clip_grad:
            clip_grads_with_norm_(self.masters.values(), self.settings.clip_grad, norm)
        self.torch.step()

    def state_tensors(self) -> dict[str, torch.Tensor]:
        """Return master weights and moments by '<kind>/<name>', flat, in the optimizer's own
        memory; moments that do not exist yet are created as zeros."""
        self._create_moments()
        tensors: dict[str, torch.Tensor] = {}
        for name, main in self.masters.items():
            tensors[f"main/{name}"] = main.detach().view(-1)
            for moment in _MOMENTS:
                tensors[f"{moment}/{name}"] = self.torch.state[main][moment].view(-1)
        return tensors

    def restore(self, num_steps: int) -> None:
        """Continue after `num_steps` steps, once masters and moments have been filled."""
        self._create_moments()
        for main in self.masters.values():
            self.torch.state[main]["step"].fill_(num_steps)

    def _create_moments(self) -> None:
        """Allocate moments as AdamW's first step would; torch has no public call for it."""
        for main in self.masters.values():
            if not self.torch.state[main]:
                self.torch.state[main] = {
                    "step": torch.zeros((), dtype=torch.float32, device=main.device),
                    **{moment: torch.zeros_like(main.detach()) for moment in _MOMENTS},
                }


def masters_of(parameters: Mapping[str, torch.nn.Parameter]) -> dict[str, torch.nn.Parameter]:
    """Return float32 master weights: the parameters themselves if they are float32, else copies."""
    return {
        name: p if p.dtype == torch.float32 else torch.nn.Parameter(p.detach().float())
        for name, p in parameters.items()
    }


class ModuleAdamW(AdamW):
    """AdamW at a constant learning rate; updated master weights are copied to the parameters.

    Args:
        parameters: the module's parameters by logical name.
        settings: constant learning rate and so on.
        masters: float32 weights shared with another optimizer; None makes its own.

    Raises:
        ConfigError: see `ModuleEngine`.
    """

    def __init__(
        self,
        parameters: Mapping[str, torch.nn.Parameter],
        settings: OptimizerConfig,
        masters: Mapping[str, torch.nn.Parameter] | None = None,
    ) -> None:
        for name in ("schedule", "warmup_steps", "decay_steps", "on_nonfinite", "moments"):
            value = getattr(settings, name)
            if value != OptimizerConfig.model_fields[name].default:
                raise ConfigError(
                    f"optimizer.{name} = {value}: a module in one process is trained at a constant "
                    "learning rate with float32 moments, and a loss that is not finite ends it; "
                    "leave it out, or train by `python -m verl_hpc train`"
                )
        self._parameters = parameters
        super().__init__(settings, dict(masters) if masters is not None else masters_of(parameters))

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
