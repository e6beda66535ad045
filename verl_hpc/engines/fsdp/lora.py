"""Low-rank adapters of transformers' linear layers (LoRA, arXiv 2106.09685), as PEFT has them.

A and B are linear layers inside the layer that they belong to, `q_proj.lora_A` and `q_proj.lora_B`,
so that fully_shard gathers and cuts them with it. B has as many rows as the weight, and is cut as
the weight is: a rank merges its rows of the weight with its own rows of B and all of A.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from verl_hpc.config.lora import LoraConfig
from verl_hpc.layout.adapters import b_of
from verl_hpc.layout.shard_map import ShardMap


class Adapters:
    """The adapters of a model, in float32 and without memory.

    Args:
        module: a model in which nothing is sharded yet, which is changed.
        specs: has the logical tensors of the adapters, which are the names of their parameters.
        lora: their rank and scale.
    """

    def __init__(self, module: torch.nn.Module, specs: ShardMap, lora: LoraConfig) -> None:
        self._scale, self._is_enabled = lora.scale, True
        self._a: dict[str, torch.nn.Linear] = {}
        """The A of every weight that has adapters, by the weight's name."""
        how: dict[str, Any] = {"bias": False, "device": "meta", "dtype": torch.float32}
        for name, layer in list(module.named_modules()):
            if f"{name}.lora_A.weight" not in specs.tensors:
                continue
            assert isinstance(layer, torch.nn.Linear), name
            layer.lora_A = torch.nn.Linear(layer.in_features, lora.rank, **how)
            layer.lora_B = torch.nn.Linear(lora.rank, layer.out_features, **how)
            layer.register_forward_hook(self._add)
            self._a[f"{name}.weight"] = layer.lora_A

    def _add(self, layer: Any, inputs: tuple[torch.Tensor], output: torch.Tensor) -> torch.Tensor:
        if not self._is_enabled:
            return output
        return output + layer.lora_B(layer.lora_A(inputs[0])) * self._scale

    @contextmanager
    def disabled(self) -> Iterator[None]:
        """Compute without adapters inside this context."""
        self._is_enabled = False
        try:
            yield
        finally:
            self._is_enabled = True

    @torch.no_grad()
    def merged(
        self, weights: Mapping[str, torch.Tensor], sent: ShardMap
    ) -> dict[str, torch.Tensor]:
        """Return a rank's weights by local name, in new memory where they have adapters: base +
        (alpha / rank) B A, computed in float32 and rounded once. All ranks of the model call it.

        Args:
            weights: this rank's rows of all parameters.
            sent: map of the tensors that are wanted, with the types to round to.
        """
        merged = dict(weights)
        kinds = {r.view.name: getattr(torch, sent.tensors[r.tensor].dtype) for r in sent.regions}
        for name, kind in kinds.items():
            if name not in self._a:
                continue
            part = self._a[name].weight
            assert isinstance(part, DTensor)
            a = part.full_tensor()
            if name in weights:
                b = weights[f"{b_of(name)}.weight"]
                whole = torch.addmm(weights[name].float(), b, a, alpha=self._scale)
                merged[name] = whole.to(kind)
        return merged
