"""Sequences split over context-parallel ranks: what transformers computes, within 1e-5 in float32.

Log-probs, entropy, loss, the gradient of every range that a rank's optimizer owns, and the gradient
norm; with tensor and sequence parallelism, pipelines, replicas, experts and recomputation.
"""

import pytest
import torch

from tests.mpi.engines_for_tests import layouts_of_world, responses, some_sequences
from tests.mpi.mixtures import FULL, engine_on, mixture
from tests.mpi.parity import TOLERANCE, gradients_equal, outputs_equal, replica_share
from verl_hpc.engines.protocol import OutputOptions

LAYOUTS = {
    2: [{"cp": 2}, {"cp": 2, **FULL}],
    4: [
        {"cp": 4},
        {"cp": 2, "dp": 2},
        {"cp": 2, "tp": 2, **FULL},
        {"cp": 2, "pp": 2},
        {"cp": 2, "pp": 2, "vpp": 2, **FULL},
    ],
    8: [{"cp": 2, "tp": 2, "pp": 2}, {"cp": 4, "dp": 2}, {"cp": 4, "tp": 2}, {"cp": 4, "pp": 2}],
}
MIXED = {
    2: [{"cp": 2, "ep": 2}, {"cp": 2}],
    4: [
        {"cp": 2, "dp": 2, "ep": 4},
        {"cp": 2, "tp": 2, "ep": 4},
        {"cp": 2, "pp": 2, "ep": 2, **FULL},
        {"cp": 2, "tp": 2, "ep": 2, "etp": 2},
        {"cp": 4, "ep": 2},
    ],
}
DENSE = [("llama", False), ("qwen3", True)]


def pytest_generate_tests(metafunc):
    layouts = MIXED if "model" in metafunc.fixturenames else LAYOUTS
    layouts_of_world(metafunc, layouts, dense=DENSE, model=["normalised", "mixtral"])


def build(here, directory, sizes, **settings):
    """An engine of context-parallel replicas; dp counts those with sequences of their own."""
    sizes = sizes | {"dp": sizes.get("dp", 1) * sizes["cp"]}
    return engine_on(here, directory, sizes, max_tokens=96, **settings)


def check(engine, expected, sequences, family):
    mine = sequences[replica_share(engine.layout)]
    outputs_equal(engine, mine, expected)
    num_tokens = sum(len(s) - 1 for s in sequences)
    loss = -sum(expected.log_probs(s).sum() for s in sequences) / num_tokens
    metrics = gradients_equal(
        engine,
        mine,
        lambda _, found: (
            -sum(o.log_probs.sum() for o in found) / num_tokens,
            {"tokens": torch.tensor(float(sum(len(o.log_probs) for o in found)))},
        ),
        (loss, expected.model, family),
    )
    assert metrics["tokens"] == num_tokens  # each counted once, though several ranks have it


@pytest.mark.world(*LAYOUTS)
def test_dense_models_equal_transformers(here, tiny_model, reference, sizes, dense):
    family, tied = dense
    directory = tiny_model(family, tied)
    engine = build(here, directory, sizes)
    vocab_size = engine.arch.vocab_size
    sequences = some_sequences(5, vocab_size) + responses(2, 4, vocab_size)
    sequences.append(torch.tensor([3, 5]))  # shorter than the pieces that it is cut into
    check(engine, reference(directory), sequences, family)


@pytest.mark.world(*MIXED)
def test_mixtures_equal_transformers(here, tiny_model, reference, sizes, model):
    directory, family = mixture(tiny_model, model)
    engine = build(here, directory, sizes)
    sequences = some_sequences(9, engine.arch.vocab_size)
    check(engine, reference(directory), sequences, family)


@pytest.mark.world(2, 4)
def test_values_and_further_outputs_equal_those_of_one_rank(here, tiny_model, sizes):
    """A critic's values, its step, and all that a language model gives beside log-probs."""
    if sizes.get("vpp"):
        pytest.skip("needs no layout of its own")
    directory = tiny_model("llama")
    whole = {name: size for name, size in sizes.items() if name != "recompute"} | {"cp": 1}
    whole["dp"] = here.world.size // (whole.get("tp", 1) * whole.get("pp", 1))
    sequences = some_sequences(8, 256)
    found = {}
    for name, layout in (("whole", whole), ("split", sizes)):
        policy = build(here, directory, layout)
        mine = sequences[replica_share(policy.layout)]
        candidates = [torch.stack([s[1:], s[:-1]], dim=-1) for s in mine]
        wanted = OutputOptions(untempered=True, sum_p_squared=True, top_k=3, candidates=candidates)
        outputs = policy.infer(mine, 0.7, wanted)
        critic = build(here, directory, layout, head="value")
        for weight in (w for n, w in critic.weights.items() if "output_layer" in n):
            weight.copy_(torch.linspace(-1, 1, weight.numel()).view_as(weight))
        critic.weights_changed()
        values = critic.infer(mine)
        metrics = critic.update(
            mine, lambda _, seen: (sum((o.values**2).sum() for o in seen) / 100, {})
        )
        gathered = here.control.allgather([[s.tolist() for s in mine], outputs, values])
        by_sequence = {}
        for keys, of_policy, of_critic in gathered:
            for key, one, other in zip(keys, of_policy, of_critic, strict=True):
                by_sequence[tuple(key)] = vars(one) | {"values": other.values}
        found[name] = by_sequence, metrics
    (expected, step), (split, step_split) = found["whole"], found["split"]
    assert len(expected) == len(sequences) and expected.keys() == split.keys()
    for key, outputs in expected.items():
        for name, value in outputs.items():
            if value is not None:
                torch.testing.assert_close(split[key][name], value, atol=TOLERANCE, rtol=0)
    assert step_split["loss"] == pytest.approx(step["loss"], rel=TOLERANCE)
    assert step_split["grad_norm"] == pytest.approx(step["grad_norm"], rel=TOLERANCE)
