"""Record the experts that vLLM's routers choose for each token of a request.

On GPUs vLLM records them itself (`enable_return_routed_experts`), also for prompts in its cache.
That needs Triton; on CPUs a hook in the routers records them, and prefix caching is off, since
cached prompts are not routed again.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Protocol

import numpy as np
import torch

from verl_hpc.layout.architecture import Architecture


class RoutedExperts(Protocol):
    """The experts of the requests of one call."""

    def follow(self, name: str, state: Any) -> None:
        """Start recording a request.

        Args:
            name: vLLM's internal name of it.
            state: the output processor's state of it.
        """

    def rows(self, name: str, first: int, stop: int) -> Any:
        """Return the experts of a request's computed tokens from first to stop, prompt included,
        (stop - first, layers, k) uint8 or uint16, without meaning in dense layers; `first` is where
        the request started recording."""

    def forget(self) -> None:
        """Drop all records at the end of the call."""


def options(device: str) -> dict[str, object]:
    """Return vLLM's arguments for an engine that records experts."""
    if device == "cpu":
        return {"enable_prefix_caching": False}
    return {"enable_prefix_caching": True, "enable_return_routed_experts": True}


class FromOutputs:
    """Experts that vLLM returns, on GPUs."""

    def __init__(self) -> None:
        self._states: dict[str, Any] = {}

    @staticmethod
    def prepare() -> None:
        """Make vLLM gather experts on every rank; call before building an engine. Here every rank
        has its own scheduler, but vLLM gathers only on the first rank of a tensor-parallel
        group."""
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
    """Experts recorded by a hook in the routers, on CPUs.

    Args:
        runner: vLLM's model runner; a step's rows are its batch's tokens, request by request.
        model: the runner's model.
        arch: the model's sizes.
    """

    def __init__(self, runner: Any, model: torch.nn.Module, arch: Architecture) -> None:
        from vllm.model_executor.layers.fused_moe.layer import MoERunner

        self._batch, self._starts = runner.input_batch, runner.query_start_loc
        self._dtype = np.uint8 if arch.num_experts <= 256 else np.uint16
        self._step: list[Any] = []
        self._found: dict[str, list[Any]] = {}
        routers = [m.router for m in model.modules() if isinstance(m, MoERunner)]
        # Dense layers come first; vLLM's own records have rows of them as well.
        self._num_dense = arch.num_dense_layers
        assert len(routers) + self._num_dense == arch.num_layers, (len(routers), arch.num_layers)
        for layer, router in enumerate(routers):
            router.set_capture_fn(lambda ids, layer=layer: self._chosen(layer, ids))
        self._last = len(routers) - 1

    def _chosen(self, layer: int, ids: torch.Tensor) -> None:
        """Record one layer's experts of all tokens of an engine step, (T, k)."""
        assert len(self._step) == layer, "layers follow each other"
        self._step.append(ids.numpy().astype(self._dtype))
        if layer < self._last:
            return
        rows = np.pad(np.stack(self._step, axis=1), ((0, 0), (self._num_dense, 0), (0, 0)))
        self._step.clear()
        starts, done = self._starts.np, self._batch.num_computed_tokens_cpu
        for place, name in enumerate(self._batch.req_ids):
            rows_of_request = self._found.setdefault(name, [])
            # A request that was preempted is computed again from its start: its log-probs are of
            # what was chosen first.
            known = sum(map(len, rows_of_request)) - int(done[place])
            assert known >= 0, "tokens were computed that no router saw"
            new = rows[starts[place] + known : starts[place + 1]]
            if len(new):
                rows_of_request.append(new)

    def follow(self, name: str, state: Any) -> None:
        del name, state

    def rows(self, name: str, first: int, stop: int) -> Any:
        rows = np.concatenate(self._found[name])
        assert len(rows) >= stop, (len(rows), stop)
        return rows[first:stop]

    def forget(self) -> None:
        self._found.clear()
