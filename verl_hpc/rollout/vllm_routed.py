"""Which experts vLLM's routers chose for each token of a request.

On GPUs vLLM keeps them itself (`enable_return_routed_experts`), also of prompts that its cache
holds. Its part for that needs Triton; on CPUs the routers tell us, and prompts must be computed,
since what the cache holds is routed nowhere: prefix caching is off.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Protocol

import numpy as np
import torch

from verl_hpc.layout.architecture import Architecture


class RoutedExperts(Protocol):
    """Of the requests of one call."""

    def follow(self, name: str, state: Any) -> None:
        """A request begins.

        Args:
            name: that vLLM's engine gave it.
            state: what vLLM's output processor keeps of it.
        """

    def rows(self, name: str, first: int, stop: int) -> Any:
        """Of the tokens first to stop of a request, prompt included, (stop - first, layers, k)
        uint8 or uint16; they have been computed, and `first` is where the request was to begin."""

    def forget(self) -> None:
        """The call has ended."""


def options(device: str) -> dict[str, object]:
    """vLLM's arguments for an engine whose experts are kept."""
    if device == "cpu":
        return {"enable_prefix_caching": False}
    return {"enable_prefix_caching": True, "enable_return_routed_experts": True}


class FromOutputs:
    """What vLLM returns, on GPUs."""

    def __init__(self) -> None:
        self._states: dict[str, Any] = {}

    @staticmethod
    def prepare() -> None:
        """Before an engine is built: every rank has a scheduler of its own here, and so needs what
        vLLM gathers on the first of a tensor-parallel group alone."""
        from vllm.distributed.aux_output_connector import worker

        worker.get_tp_group = lambda: SimpleNamespace(is_first_rank=True)

    def follow(self, name: str, state: Any) -> None:
        self._states[name] = state

    def rows(self, name: str, first: int, stop: int) -> Any:
        rows = np.concatenate(self._states[name].routed_experts_chunks)
        assert len(rows) >= stop - first, (len(rows), first, stop)
        return rows[: stop - first]

    def forget(self) -> None:
        self._states.clear()


class FromRouters:
    """What routers tell, on CPUs.

    Args:
        runner: vLLM's model runner; the rows of a step are those of its batch, request by request.
        model: its model.
        arch: the model's sizes.
    """

    def __init__(self, runner: Any, model: torch.nn.Module, arch: Architecture) -> None:
        from vllm.model_executor.layers.fused_moe.layer import MoERunner

        self._batch, self._starts = runner.input_batch, runner.query_start_loc
        self._dtype = np.uint8 if arch.num_experts <= 256 else np.uint16
        self._step: list[Any] = []
        self._found: dict[str, list[Any]] = {}
        routers = [m.router for m in model.modules() if isinstance(m, MoERunner)]
        assert len(routers) == arch.num_layers, (len(routers), arch.num_layers)
        for layer, router in enumerate(routers):
            router.set_capture_fn(lambda ids, layer=layer: self._chosen(layer, ids))
        self._last = len(routers) - 1

    def _chosen(self, layer: int, ids: torch.Tensor) -> None:
        """Of all tokens of a step, (T, k)."""
        assert len(self._step) == layer, "layers follow each other"
        self._step.append(ids.numpy().astype(self._dtype))
        if layer < self._last:
            return
        rows = np.stack(self._step, axis=1)
        self._step.clear()
        starts, done = self._starts.np, self._batch.num_computed_tokens_cpu
        for place, name in enumerate(self._batch.req_ids):
            found = self._found.setdefault(name, [])
            # A request that was preempted is computed again from its start: its log-probs are of
            # what was chosen first.
            known = sum(map(len, found)) - int(done[place])
            assert known >= 0, "tokens were computed that no router saw"
            new = rows[starts[place] + known : starts[place + 1]]
            if len(new):
                found.append(new)

    def follow(self, name: str, state: Any) -> None:
        del name, state

    def rows(self, name: str, first: int, stop: int) -> Any:
        rows = np.concatenate(self._found[name])
        assert len(rows) >= stop, (len(rows), stop)
        return rows[first:stop]

    def forget(self) -> None:
        self._found.clear()
