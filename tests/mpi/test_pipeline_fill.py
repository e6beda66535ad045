"""Micro-batches of a pipeline: enough to fill it, and as many on every replica."""

import pytest
import torch

from tests.mpi.engines_for_tests import build_engine
from tests.mpi.parity import summed
from verl_hpc.layout.megatron import TrainLayout

pytestmark = pytest.mark.world(4)


@pytest.fixture
def counted(here, tiny_model, monkeypatch):
    """`counted(lengths, **sizes)`: sequences in each micro-batch of an update and of a pass for
    log-probs, and the update's metrics, on a rank whose replica has sequences of these lengths."""

    def run(lengths, max_tokens=64, **sizes):
        engine = build_engine(
            here, tiny_model(num_hidden_layers=4), TrainLayout(**sizes), max_tokens=max_tokens
        )
        mine = lengths[engine.layout.grid.coordinates(here.world.rank)["dp"]]
        # None begins like its neighbour: no tokens are shared.
        sequences = [(torch.arange(n) + i % 4) % engine.arch.vocab_size for i, n in enumerate(mine)]
        bins = []
        run_passes = engine._passes.run

        def spy(sequences, plan, *arguments, **options):
            bins.append([len(indices) for indices in plan.bins])
            return run_passes(sequences, plan, *arguments, **options)

        monkeypatch.setattr(engine._passes, "run", spy)
        engine.infer(sequences)
        metrics = engine.update(sequences, summed(100))
        return *bins, metrics

    return run


EVEN = [[9] * 8, [10] * 8]
"""Lengths on both replicas; a budget of 64 needs two micro-batches."""


def test_a_pipeline_has_enough_micro_batches_and_takes_the_same_step(counted):
    infer, update, full = counted(EVEN, pp=2, dp=2)
    assert infer == update == [2, 2, 2, 2]
    parts = [EVEN[0][:4], EVEN[0][4:], EVEN[1][:4], EVEN[1][4:]]
    *_, plain = counted(parts, dp=4)
    for name in ("loss", "grad_norm"):
        assert full[name] == pytest.approx(plain[name], rel=1e-5)


@pytest.mark.parametrize(
    "lengths, sizes, expected",
    [
        # an interleaved one
        (EVEN, {"pp": 2, "dp": 2, "vpp": 2}, [[2, 2, 2, 2]] * 2),
        # Six of 30 tokens need three micro-batches, four want as many; ten of 60 need ten.
        ([[30] * 6, [60] * 10], {"pp": 2, "dp": 2}, [[0] * 4 + [1] * 6, [1] * 10]),
        # None is empty for the sake of a full pipeline.
        ([[5] * 8, [5] * 3], {"pp": 2, "dp": 2}, [[2, 3, 3], [1, 1, 1]]),
        # without a pipeline there are as few as before
        ([EVEN[0]] * 4, {"dp": 4}, [[4, 4]] * 4),
    ],
)
def test_micro_batches_of_each_replica(here, counted, lengths, sizes, expected):
    _, update, _ = counted(lengths, **sizes)
    replica = TrainLayout(**sizes).grid.coordinates(here.world.rank)["dp"]
    assert sorted(update) == expected[replica]
