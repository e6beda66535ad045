"""What tests of fully_shard's engine share: its gradients, whole tensors on its rows, heads."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from tests.mpi.engines_for_tests import held
from tests.mpi.parity import TOLERANCE
from verl_hpc.layout.heads import HEAD_TENSORS


def gradients_at_step(engine) -> dict[str, torch.Tensor]:
    """Filled in the engine's updates from now on: reduced gradients of this rank's rows."""
    seen: dict[str, torch.Tensor] = {}
    step = engine.optimizer.step

    def spy():
        seen.update({name: g.clone() for name, g in engine.optimizer.gradients().items()})
        return step()

    engine.optimizer.step = spy
    return seen


def rows_equal(engine, memory: Mapping[str, torch.Tensor], whole: Mapping[str, torch.Tensor]):
    """Weights or gradients of this rank are its rows of whole tensors by logical name."""
    owned = engine.shard_map.held_by(torch.distributed.get_rank())
    assert {region.view.name for region in owned} == set(memory)
    for region in owned:
        wanted = whole[region.tensor].detach()[region.box.slices]
        torch.testing.assert_close(held(memory, region), wanted, atol=TOLERANCE, rtol=0)


def head_weight(hidden_size: int) -> torch.Tensor:
    """(1, hidden): one that is not there starts at zero, and trains nothing below it."""
    return torch.linspace(-0.1, 0.1, hidden_size)[None]


def fill_head(engine) -> None:
    """Fill an engine's head with `head_weight`, in any layout."""
    whole = head_weight(engine.arch.hidden_size)
    for region in engine.shard_map.held_by(torch.distributed.get_rank()):
        if region.tensor == HEAD_TENSORS[engine.head]:
            local = engine.weights[region.view.name].view(-1)
            local[: whole.numel()] = whole[region.box.slices].flatten()
    engine.weights_changed()
