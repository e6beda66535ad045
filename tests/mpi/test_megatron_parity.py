"""Megatron-core on every layout computes what transformers computes, within 1e-5 in float32.

Loss, log-probs, entropy, every shard of every gradient, and the gradient norm; Llama-, Phi-3- and
Qwen2-style models, tied and untied; sequence parallelism and virtual stages.

A layout takes every third model: each runs on two layouts, tied and untied embeddings in pipelines,
in virtual stages, and without. All models on all layouts take --slow.
"""

from itertools import product

import pytest

from tests.mpi import plugin
from tests.mpi.engines_for_tests import engine_of_sizes, layouts, responses, some_sequences
from tests.mpi.parity import mean_loss_equals, outputs_equal, replica_share
from tests.slow import mostly_slow

LAYOUTS = {
    1: layouts("one"),
    2: layouts("tp2 tp2-sp pp2 pp2-vpp2 dp2"),
    4: layouts("tp2-pp2 tp2-pp2-sp tp2-pp2-vpp2-sp tp2-dp2 pp2-dp2-vpp2 tp4"),
}
MODELS = [
    *product(("llama", "qwen2"), (False, True)),
    *(("qwen3", True), ("phi3", False), ("ernie4_5", True)),
]


def pytest_generate_tests(metafunc):
    cases = [
        (sizes, *model)
        for sizes, model in product(LAYOUTS.get(plugin.session.world.size, []), MODELS)
    ]
    names = ["-".join(map(str, (*sizes, *sizes.values(), *model))) for sizes, *model in cases]
    metafunc.parametrize("sizes, family, tied", mostly_slow(cases, every=3), ids=names)


@pytest.mark.world(*LAYOUTS)
def test_everything_equals_transformers(here, tiny_model, reference, sizes, family, tied):
    directory = tiny_model(family, tied)
    engine, expected = engine_of_sizes(here, directory, sizes), reference(directory)
    vocab_size = engine.arch.vocab_size
    sequences = some_sequences(4, vocab_size) + responses(2, 4, vocab_size)
    mine = sequences[replica_share(engine.layout)]
    assert sum(engine._planner.plan(mine).shared) > 0
    outputs_equal(engine, mine, expected)
    mean_loss_equals(engine, mine, expected, family, sequences)
