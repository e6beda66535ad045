"""One module trained by several optimizers, each with its own moments and learning rate."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import torch

from verl_hpc.config.model import OptimizerConfig
from verl_hpc.engines.adamw import ModuleAdamW, masters_of
from verl_hpc.engines.module import ModuleEngine, here
from verl_hpc.engines.protocol import STATE_KINDS
from verl_hpc.layout.architecture import Architecture
from verl_hpc.layout.heads import Head
from verl_hpc.layout.shard_map import ShardMap, TensorSpec, dtype_name

LR = "lr"
"""Logical name of a path's learning rate among its weights, (1,) float32."""


class SharedModule(ModuleEngine):
    """Weights that several optimizers step on (`OptimizerPath`); holds their float32 masters but no
    optimizer.

    Args:
        leave_out: logical names of parameters that are not shared.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        arch: Architecture,
        head: Head,
        device: torch.device,
        names: Mapping[str, str] | None = None,
        leave_out: Collection[str] = (),
    ) -> None:
        super().__init__(module, arch, head, None, device, names=names)
        for name in leave_out:
            del self.parameters[name]
        self.weights = {name: p.detach() for name, p in self.parameters.items()}
        self.shard_map = self.trained_map = _map_of(self.weights)
        self.masters = masters_of(self.parameters)

    def weights_changed(self) -> None:
        for name, master in self.masters.items():
            master.data.copy_(self.parameters[name].detach())

    def optimizer_map(self, primary: bool = False) -> ShardMap:
        del primary
        shapes = {f"main/{name}": tuple(m.shape) for name, m in self.masters.items()}
        return here({name: TensorSpec(shape, "float32") for name, shape in shapes.items()})

    def optimizer_tensors(self) -> Mapping[str, torch.Tensor]:
        return {f"main/{name}": m.detach().view(-1) for name, m in self.masters.items()}

    def restore_counters(self, counters: Mapping[str, int]) -> None:
        super().restore_counters(counters)
        for name, master in self.masters.items():
            self.parameters[name].data.copy_(master.detach())


class OptimizerPath(ModuleEngine):
    """AdamW with its own state over the weights of a `SharedModule`, and over parameters that no
    other path has, such as a head.

    A checkpoint holds its own weights, its learning rate, and Adam's moments of all it trains.

    Args:
        module: see `ModuleEngine`; it computes with the shared weights.
        shared: weights trained with other paths; None trains only its own parameters.
        own: further parameters by logical name, float32.
        optimizer: learning rate and so on.

    Raises:
        ConfigError: see `ModuleEngine`.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        arch: Architecture,
        head: Head,
        optimizer: OptimizerConfig,
        device: torch.device,
        shared: SharedModule | None = None,
        own: Mapping[str, torch.nn.Parameter] | None = None,
    ) -> None:
        super().__init__(module, arch, head, None, device)
        mine = dict(own or {})
        self.parameters = {**(shared.parameters if shared is not None else {}), **mine}
        masters = {**(shared.masters if shared is not None else {}), **mine}
        self.dtype, self._lr = torch.float32, torch.tensor([optimizer.lr])
        self.weights = {**{name: p.detach() for name, p in mine.items()}, LR: self._lr}
        self.shard_map = self.trained_map = _map_of(self.weights)
        self._own, self._optimizer = mine, ModuleAdamW(self.parameters, optimizer, masters)

    @property
    def lr(self) -> float:
        """Learning rate of the next step."""
        assert self._optimizer is not None
        return self._optimizer.lr

    @lr.setter
    def lr(self, lr: float) -> None:
        assert self._optimizer is not None
        self._lr.fill_(lr)
        self._optimizer.lr = lr

    def weights_changed(self) -> None:
        """Do nothing: the masters of its own parameters are the parameters themselves."""

    def optimizer_map(self, primary: bool = False) -> ShardMap:
        del primary
        specs = {
            f"{kind}/{name}": TensorSpec(tuple(p.shape), "float32")
            for kind in STATE_KINDS
            for name, p in self.parameters.items()
            if kind != "main" or name in self._own
        }
        return here(specs)

    def optimizer_tensors(self) -> Mapping[str, torch.Tensor]:
        tensors = super().optimizer_tensors()
        return {name: tensors[name] for name in self.optimizer_map().tensors}

    def restore_counters(self, counters: Mapping[str, int]) -> None:
        super().restore_counters(counters)
        self.lr = float(self._lr)


def _map_of(weights: Mapping[str, torch.Tensor]) -> ShardMap:
    return here({n: TensorSpec(tuple(w.shape), dtype_name(w.dtype)) for n, w in weights.items()})
