"""Sequences split over context-parallel ranks: what transformers computes, within 1e-5 in float32.

Log-probs, entropy, loss, the gradient of every range that a rank's optimizer owns, and the gradient
norm; with tensor and sequence parallelism, pipelines, replicas, experts and recomputation.
"""

import pytest
import torch

from tests.mpi import parity
from tests.mpi.engines_for_tests import layouts, layouts_of_world, responses, some_sequences
from tests.mpi.mixtures import engine_on, mixture
from verl_hpc.engines.protocol import OutputOptions

LAYOUTS = {
    2: layouts("cp2 cp2-full"),
    4: layouts("cp4 cp2-dp2 cp2-tp2-full cp2-pp2 cp2-pp2-vpp2-full"),
    8: layouts("cp2-tp2-pp2 cp4-dp2 cp4-tp2 cp4-pp2"),
}
MIXED = {
    2: layouts("cp2-ep2 cp2"),
    4: layouts("cp2-dp2-ep4 cp2-tp2-ep4 cp2-pp2-ep2-full cp2-tp2-ep2-etp2 cp4-ep2"),
}
DENSE = [("llama", False), ("qwen3", True)]


def pytest_generate_tests(metafunc):
    cases = MIXED if "model" in metafunc.fixturenames else LAYOUTS
    layouts_of_world(metafunc, cases, dense=DENSE, model=["normalised", "mixtral"])


def build(here, directory, sizes, **settings):
    """An engine of context-parallel replicas; dp counts those with sequences of their own."""
    sizes = sizes | {"dp": sizes.get("dp", 1) * sizes["cp"]}
    return engine_on(here, directory, sizes, max_tokens=96, **settings)


def check(engine, expected, sequences, family):
    mine = sequences[parity.replica_share(engine.layout)]
    parity.outputs_equal(engine, mine, expected)
    num_tokens = parity.num_targets(sequences)

    def loss(_, outputs):
        count = torch.tensor(float(sum(len(o.log_probs) for o in outputs)))
        return parity.summed(num_tokens)(_, outputs)[0], {"tokens": count}

    wanted = (parity.reference_loss(expected, sequences), expected.model, family)
    metrics = parity.gradients_equal(engine, mine, loss, wanted)
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
    computed = {}
    for name, layout in (("whole", whole), ("split", sizes)):
        policy = build(here, directory, layout)
        mine = sequences[parity.replica_share(policy.layout)]
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
        computed[name] = by_sequence, metrics
    (expected, step), (split, step_split) = computed["whole"], computed["split"]
    assert len(expected) == len(sequences) and expected.keys() == split.keys()
    for key, outputs in expected.items():
        for name, value in outputs.items():
            if value is not None:
                torch.testing.assert_close(split[key][name], value, atol=parity.TOLERANCE, rtol=0)
    assert step_split["loss"] == pytest.approx(step["loss"], rel=parity.TOLERANCE)
    assert step_split["grad_norm"] == pytest.approx(step["grad_norm"], rel=parity.TOLERANCE)
