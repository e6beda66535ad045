"""Mixtures of experts on Megatron-core compute what transformers computes, within 1e-5 in float32.

Log-probs, entropy, loss, the gradient of every range that a rank's optimizer owns, and the
gradient norm; experts over tensor- and data-parallel ranks, whole and split, in pipelines,
recomputed. Models take turns; with --slow all are on all layouts, and on every one of 1 to 8 ranks
with TP, PP and ETP of at most 2, EP and DP of at most 4.
"""

import pytest

from tests.mpi.engines_for_tests import layouts_of_world, responses, some_sequences
from tests.mpi.mixtures import FULL, MODELS, engine_on, every_layout_of_world, mixture
from tests.mpi.parity import gradients_equal, outputs_equal, replica_share

LAYOUTS = {
    1: [{}, FULL],
    2: [
        {"dp": 2},
        {"dp": 2, "ep": 2},
        {"dp": 2, "etp": 2},
        {"dp": 2, "ep": 2, **FULL},
        {"tp": 2},
        {"tp": 2, "ep": 2},
        {"tp": 2, "etp": 2},
        {"pp": 2},
        {"pp": 2, "vpp": 2},
    ],
    4: [
        {"tp": 2, "dp": 2, "ep": 4},
        {"tp": 2, "dp": 2, "etp": 2},
        {"tp": 2, "dp": 2, "ep": 2, "etp": 2},
        {"dp": 4, "ep": 2, "etp": 2},
        {"tp": 2, "pp": 2, "ep": 2},
        {"tp": 2, "pp": 2, "etp": 2, **FULL},
        {"pp": 2, "dp": 2, "ep": 2},
        {"pp": 2, "vpp": 2, "dp": 2, "ep": 2},
    ],
    8: [
        {"tp": 2, "pp": 2, "dp": 2, "ep": 4},
        {"tp": 2, "pp": 2, "dp": 2, "ep": 2, "etp": 2},
        {"tp": 2, "dp": 4, "ep": 4, "etp": 2},
    ],
}

FURTHER = {
    4: [{"tp": 2, "dp": 2}, {"tp": 2, "dp": 2, "ep": 2}, {"dp": 4, "ep": 4}, {"tp": 4, "ep": 2}]
}
"""Of which each axis is in one of the others; experts of four ranks of tensor parallelism compute
in test_moe_reshard, too."""


def pytest_generate_tests(metafunc):
    layouts_of_world(metafunc, LAYOUTS, FURTHER, model=list(MODELS))
    every_layout_of_world(metafunc)


@pytest.mark.world(*LAYOUTS)
def test_everything_equals_transformers(here, tiny_model, reference, sizes, model):
    equals_transformers(here, tiny_model, reference, sizes, model)


@pytest.mark.slow(reason="the full grid; run with --slow")
@pytest.mark.world(1, 2, 4, 8)
@pytest.mark.parametrize("model", MODELS)
def test_every_layout_equals_transformers(here, tiny_model, reference, every, model):
    equals_transformers(here, tiny_model, reference, every, model)


def equals_transformers(here, tiny_model, reference, sizes, model):
    directory, family = mixture(tiny_model, model)
    engine, expected = engine_on(here, directory, sizes), reference(directory)
    vocab_size = engine.arch.vocab_size
    sequences = some_sequences(5, vocab_size) + responses(2, 4, vocab_size)
    mine = sequences[replica_share(engine.layout)]
    outputs_equal(engine, mine, expected)
    num_tokens = sum(len(s) - 1 for s in sequences)
    loss = -sum(expected.log_probs(s).sum() for s in sequences) / num_tokens
    gradients_equal(
        engine,
        mine,
        lambda _, found: (-sum(o.log_probs.sum() for o in found) / num_tokens, {}),
        (loss, expected.model, family),
    )
