"""Inputs of recomputed layers in host memory: the same update, and what is kept where it was.

Host memory and the device's are the same here, and a copy stands for a move: what this shows is
which tensors are moved, and that they come back.
"""

import pytest
import torch

from tests.mpi.engines_for_tests import build_engine, same, some_sequences
from tests.mpi.parity import summed
from verl_hpc.engines.megatron import engine as megatron_engine
from verl_hpc.engines.megatron import passes
from verl_hpc.engines.megatron.host_activations import HostActivations
from verl_hpc.errors import ClusterError
from verl_hpc.layout.megatron import TrainLayout

pytestmark = pytest.mark.world(1, 2)


def update(engine, sequences):
    metrics = engine.update(sequences, summed(50))
    return metrics, {name: weight.clone() for name, weight in engine.weights.items()}


def test_an_update_is_the_same_and_inputs_of_layers_are_away(here, tiny_model, monkeypatch):
    layout = TrainLayout(pp=here.world.size)
    directory = tiny_model("qwen3", True, num_hidden_layers=4)
    sequences = some_sequences(12, 256)
    engine = build_engine(here, directory, layout, recompute="full", max_tokens=64)
    expected, weights = update(engine, sequences)
    moved: list[torch.Tensor] = []

    class Recorded(HostActivations):
        def _away(self, tensor):
            kept = super()._away(tensor)
            if kept is not tensor:
                moved.append(tensor)
            return kept

    monkeypatch.setattr(passes, "HostActivations", Recorded)
    monkeypatch.setattr(megatron_engine, "check_offload", lambda _: None)  # it asks for a GPU
    settings = {"recompute": "full", "offload_activations": True}
    engine = build_engine(here, directory, layout, max_tokens=64, **settings)
    metrics, updated = update(engine, sequences)
    assert metrics == expected
    same(updated, weights)
    layers = engine.arch.num_layers // layout.pp
    plan = engine._planner.plan(sequences)
    # Of each micro-batch the inputs of all layers, and of the norm and the layer behind them.
    assert {t.shape[1:] for t in moved} == {(1, engine.arch.hidden_size)}
    inputs = len(plan.bins) * layers
    if here.world.rank == here.world.size - 1:
        assert inputs < len(moved) <= 2 * inputs + 2 * len(plan.bins)
    else:
        assert len(moved) == inputs


def test_ranks_without_a_gpu_refuse(here, tiny_model):
    settings = {"recompute": "full", "offload_activations": True}
    for given, why in (
        (settings, "parallel.offload_activations: .* has no GPU"),
        ({"moments": "bfloat16"}, "optimizer.moments = bfloat16 needs .* here .no GPU.; choose"),
    ):
        with pytest.raises(ClusterError, match=why):
            build_engine(here, tiny_model("qwen3", True), TrainLayout(dp=here.world.size), **given)
