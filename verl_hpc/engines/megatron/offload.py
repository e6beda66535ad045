"""Memory of a Megatron-core engine that can be offloaded to the host."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

import torch

from verl_hpc.engines.megatron.optimizer import Optimizer
from verl_hpc.engines.shared.offload import Candidates, Memory


def memory_of(
    chunks: Sequence[Any],
    optimizer: Optimizer | None,
    shared: Collection[torch.nn.Parameter] = frozenset(),
) -> Candidates:
    """Return a function that lists the tensors of each part of an engine's memory.

    Args:
        chunks: the model's chunks.
        optimizer: None for a model that is not trained.
        shared: frozen parameters that lie in another engine's memory.
    """

    def parameters(part: Memory) -> Iterator[torch.Tensor]:
        for parameter in (p for chunk in chunks for p in chunk.parameters()):
            is_own = parameter.requires_grad or parameter not in shared
            if part == "parameters" or (is_own and parameter.requires_grad is (part == "trained")):
                yield parameter.detach()

    def candidates(part: Memory) -> Iterator[torch.Tensor]:
        if part in ("parameters", "trained", "frozen"):
            yield from parameters(part)
        elif part == "gradients":
            for chunk in chunks if optimizer is not None else ():
                buffers = (*chunk.buffers, *chunk.expert_parallel_buffers)
                yield from (buffer.grad_data for buffer in buffers)
        elif optimizer is not None:
            places = {p.untyped_storage().data_ptr() for c in chunks for p in c.parameters()}
            # In float32 the master weights are the parameters themselves.
            for tensor in optimizer.state_tensors().values():
                if tensor.untyped_storage().data_ptr() not in places:
                    yield tensor

    return candidates
