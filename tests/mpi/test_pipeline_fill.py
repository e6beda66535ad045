"""Micro-batches of a pipeline: enough to fill it, and as many on every replica."""

import pytest
import torch

from tests.mpi.engines_for_tests import build_engine
from verl_hpc.layout.megatron import TrainLayout

pytestmark = pytest.mark.world(4)


@pytest.fixture
def counted(here, tiny_model, monkeypatch):
    """`counted(lengths, **sizes)`: sequences in each micro-batch of an update and of a pass for
    log-probs, and the update's metrics, on a rank whose replica has sequences of these lengths."""

    def run(lengths, max_tokens=64, **sizes):
        engine = build_engine(here, tiny_model(), TrainLayout(**sizes), max_tokens=max_tokens)
        mine = lengths[engine.layout.grid.coordinates(here.world.rank)["dp"]]
        # None begins like its neighbour: no tokens are shared.
        sequences = [(torch.arange(n) + i % 4) % engine.arch.vocab_size for i, n in enumerate(mine)]
        found = []
        run_passes = engine._passes.run

        def spy(sequences, plan, *arguments, **options):
            found.append([len(indices) for indices in plan.bins])
            return run_passes(sequences, plan, *arguments, **options)

        monkeypatch.setattr(engine._passes, "run", spy)
        engine.infer(sequences)
        metrics = engine.update(
            sequences, lambda _, outputs: (-sum(o.log_probs.sum() for o in outputs) / 100, {})
        )
        return *found, metrics

    return run


EVEN = [[9] * 8, [10] * 8]
"""Of both replicas; a budget of 64 needs two micro-batches."""


def test_a_pipeline_of_two_stages_has_four(counted):
    infer, update, _ = counted(EVEN, pp=2, dp=2)
    assert infer == update == [2, 2, 2, 2]


def test_an_interleaved_one_has_them_too(counted):
    assert counted(EVEN, pp=2, dp=2, vpp=2)[1] == [2, 2, 2, 2]


def test_more_where_one_replica_needs_more(here, counted):
    """Six of 30 tokens need three micro-batches, four want as many; ten of 60 need ten."""
    _, update, _ = counted([[30] * 6, [60] * 10], pp=2, dp=2)
    assert len(update) == 10
    replica = TrainLayout(pp=2, dp=2).grid.coordinates(here.world.rank)["dp"]
    assert sorted(update) == ([1] * 10 if replica else [0] * 4 + [1] * 6)


def test_no_micro_batch_is_empty_for_the_sake_of_a_full_pipeline(counted):
    _, update, _ = counted([[5] * 8, [5] * 3], pp=2, dp=2)
    assert len(update) == 3 and all(update)


def test_without_a_pipeline_there_are_as_few_as_before(counted):
    _, update, _ = counted([EVEN[0]] * 4, dp=4)
    assert update == [4, 4]


def test_the_step_is_the_same(counted):
    *_, full = counted(EVEN, pp=2, dp=2)
    *_, plain = counted([EVEN[0][:4], EVEN[0][4:], EVEN[1][:4], EVEN[1][4:]], dp=4)
    assert full["loss"] == pytest.approx(plain["loss"], rel=1e-5)
    assert full["grad_norm"] == pytest.approx(plain["grad_norm"], rel=1e-5)
