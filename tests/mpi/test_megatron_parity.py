"""Megatron-core on every layout computes what transformers computes, within 1e-5 in float32.

Loss, log-probs, entropy, every shard of every gradient, and the gradient norm; Llama-, Phi-3- and
Qwen2-style models, tied and untied; sequence parallelism and virtual stages.

A layout takes every third model: each runs on two layouts, tied and untied embeddings in pipelines,
in virtual stages, and without. All models on all layouts take --slow.
"""

from itertools import product

import pytest

from tests.mpi import plugin
from tests.mpi.engines_for_tests import build_engine, responses, some_sequences
from tests.mpi.parity import gradients_equal, outputs_equal, replica_share
from tests.slow import mostly_slow
from verl_hpc.layout.megatron import TrainLayout

LAYOUTS = {
    1: [dict()],
    2: [dict(tp=2), dict(tp=2, sp=True), dict(pp=2), dict(pp=2, vpp=2), dict(dp=2)],
    4: [
        dict(tp=2, pp=2),
        dict(tp=2, pp=2, sp=True),
        dict(tp=2, pp=2, vpp=2, sp=True),
        dict(tp=2, dp=2),
        dict(pp=2, dp=2, vpp=2),
        dict(tp=4),
    ],
}
MODELS = [
    ("llama", False),
    ("llama", True),
    ("qwen2", False),
    ("qwen2", True),
    ("qwen3", True),
    ("phi3", False),
    ("ernie4_5", True),
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
    sizes = dict(sizes)
    sequence_parallel = sizes.pop("sp", False)
    layout = TrainLayout(**sizes)
    directory = tiny_model(family, tied)
    engine = build_engine(here, directory, layout, sequence_parallel=sequence_parallel)
    expected = reference(directory)

    vocab_size = engine.arch.vocab_size
    sequences = some_sequences(4, vocab_size) + responses(2, 4, vocab_size)
    mine = sequences[replica_share(layout)]
    assert sum(engine._passes.plan(mine).shared) > 0
    outputs_equal(engine, mine, expected)

    num_tokens = sum(len(s) - 1 for s in sequences)
    loss = -sum(expected.log_probs(s).sum() for s in sequences) / num_tokens
    gradients_equal(
        engine,
        mine,
        lambda _, found: (-sum(o.log_probs.sum() for o in found) / num_tokens, {}),
        (loss, expected.model, family),
    )
