"""Adapters compute what transformers computes with merged weights, within 1e-5 in float32.

Log-probs, loss, the gradient of every range of A and B that a rank's optimizer owns, and the
gradient norm: A's is scale B^T dW and B's scale dW A^T, of transformers' dW.
"""

import pytest
import torch

from tests.mpi.conftest import Reference
from tests.mpi.engines_for_tests import build_engine, layouts_of_world, some_sequences
from tests.mpi.lora_for_tests import fill, merged, some_adapters
from tests.mpi.mixtures import FULL, mixture
from tests.mpi.parity import (
    TOLERANCE,
    by_checkpoint_name,
    gradients_of,
    named_as,
    replica_share,
    update_equals,
)
from verl_hpc.config.lora import LoraConfig
from verl_hpc.engines.megatron import lora as engine_lora
from verl_hpc.layout.adapters import a_of, b_of
from verl_hpc.layout.megatron import TrainLayout

DENSE = {
    1: [{}, FULL, {"recompute": "selective"}],
    2: [
        {"tp": 2},
        {"tp": 2, "sp": 1},
        {"tp": 2, "sp": 1, **FULL},
        {"dp": 2},
        {"pp": 2},
        {"pp": 2, **FULL},
        {"pp": 2, "vpp": 2},
    ],
    4: [{"tp": 2, "sp": 1, "pp": 2}, {"tp": 2, "dp": 2, "sp": 1, **FULL}, {"tp": 4}],
}
EXPERTS = {
    1: [{}, FULL],
    2: [
        {"dp": 2, "ep": 2},
        {"dp": 2, "etp": 2},
        {"tp": 2, "sp": 1},
        {"tp": 2, "ep": 2, "sp": 1},
        {"tp": 2, "etp": 2, "sp": 1},
        {"pp": 2, **FULL},
    ],
    4: [
        {"tp": 2, "dp": 2, "ep": 2, "etp": 2, "sp": 1},
        {"dp": 4, "ep": 2, "etp": 2, **FULL},
        {"tp": 2, "dp": 2, "ep": 4, "sp": 1},
        {"pp": 2, "dp": 2, "ep": 2},
    ],
}
TARGETS = {
    "all": ("all-linear", False),
    "all-tied": ("all-linear", True),
    "qv": (["q_proj", "v_proj"], True),
    "kou": (["k_proj", "o_proj", "up_proj"], False),
}


def pytest_generate_tests(metafunc):
    of_experts = "experts" in metafunc.function.__name__
    layouts = EXPERTS if of_experts else DENSE
    layouts_of_world(metafunc, layouts, chosen=list(TARGETS), model=["normalised", "mixtral"])


def engine_of(here, directory, sizes, targets, **more):
    sizes = dict(sizes)
    settings = {k: sizes.pop(k) for k in ("recompute",) if k in sizes}
    sequence_parallel = bool(sizes.pop("sp", 0))
    lora = LoraConfig(rank=3, alpha=6.0, target_modules=targets)
    return build_engine(
        here,
        directory,
        TrainLayout(**sizes),
        sequence_parallel=sequence_parallel,
        max_tokens=64,
        lora=lora,
        **settings,
        **more,
    )


def fill_reference(reference, family, adapters, scale):
    """Merge into transformers' parameters, of which some are stacked; what was there."""
    before = {n: p.detach().clone() for n, p in reference.model.named_parameters()}
    named = {n: p.data for n, p in reference.model.named_parameters()}
    for name, memory in named_as(family, by_checkpoint_name(named)).items():
        memory.copy_(merged(memory, name, adapters, scale))
    return before


def check(here, directory, family, engine):
    scale = 2.0
    adapters = some_adapters(engine)
    fill(engine, adapters)
    base = {n: w.clone() for n, w in engine.weights.items() if ".lora_" not in n}
    plain, expected = Reference(directory), Reference(directory)
    fill_reference(expected, family, adapters, scale)

    sequences = some_sequences(6, engine.arch.vocab_size)
    mine = sequences[replica_share(engine.layout)]
    moved = 0.0
    for sequence, output in zip(mine, engine.infer(mine), strict=True):
        with torch.no_grad():
            log_probs, without = expected.log_probs(sequence), plain.log_probs(sequence)
        torch.testing.assert_close(output.log_probs, log_probs, atol=TOLERANCE, rtol=0)
        moved = max(moved, (log_probs - without).abs().max().item())
    assert moved > 0.01  # or nothing was tested
    with engine.without_adapters():
        for sequence, output in zip(mine, engine.infer(mine), strict=True):
            with torch.no_grad():
                log_probs = plain.log_probs(sequence)
            torch.testing.assert_close(output.log_probs, log_probs, atol=TOLERANCE, rtol=0)

    num_tokens = sum(len(s) - 1 for s in sequences)
    loss = -sum(expected.log_probs(s).sum() for s in sequences) / num_tokens
    loss.backward()
    wanted = {}
    for name, gradient in gradients_of(expected.model, family).items():
        a, b = f"{a_of(name)}.weight", f"{b_of(name)}.weight"
        if a in adapters:
            wanted[a] = scale * adapters[b].T @ gradient
            wanted[b] = scale * gradient @ adapters[a].T
    assert wanted.keys() == adapters.keys()
    update_equals(
        engine,
        lambda: engine.update(
            mine, lambda _, found: (-sum(o.log_probs.sum() for o in found) / num_tokens, {})
        ),
        wanted,
        loss.item(),
        engine.trained_map,
    )
    assert all(".lora_" in one.name for one in engine.optimizer.owned_ranges())
    for name, weight in base.items():
        assert torch.equal(weight, engine.weights[name]), name
    changed = {n for n, w in engine.weights.items() if ".lora_" in n and w.any()}
    assert changed == {n for n in engine.weights if ".lora_" in n}


@pytest.mark.world(*DENSE)
def test_everything_equals_transformers(here, tiny_model, sizes, chosen):
    targets, tied = TARGETS[chosen]
    directory = tiny_model("qwen3", tied, num_hidden_layers=4, num_key_value_heads=4)
    check(here, directory, "qwen3", engine_of(here, directory, sizes, targets))


@pytest.mark.world(*EXPERTS)
def test_everything_equals_transformers_with_experts(here, tiny_model, sizes, model):
    directory, family = mixture(tiny_model, model)
    check(here, directory, family, engine_of(here, directory, sizes, "all-linear"))


@pytest.mark.world(2)
@pytest.mark.parametrize("split", [{"tp": 2, "sp": 1}, {"pp": 2, **FULL}], ids=["tp", "pp"])
def test_a_new_head_is_trained_with_the_adapters(here, tiny_model, split):
    directory = tiny_model("qwen3", num_hidden_layers=4, num_key_value_heads=4)
    engine = engine_of(here, directory, split, ["q_proj"], head="value")
    fill(engine, some_adapters(engine))
    before = {n: w.clone() for n, w in engine.weights.items()}
    mine = some_sequences(4, engine.arch.vocab_size)
    for _ in range(2):  # a head of zero gives what is before it no gradient
        engine.update(
            mine, lambda _, found: (sum((o.values - 1).square().sum() for o in found), {})
        )
    changed = {n for n, w in engine.weights.items() if not torch.equal(w, before[n])}
    trained = {n for n in before if "linear_qkv.lora_" in n or "output_layer" in n}
    assert changed == trained
    held = {r.view.name for r in engine.trained_map.held_by(here.world.rank)}
    assert held == trained
    assert "value_head.weight" in engine.trained_map.tensors


@pytest.mark.world(1)
def test_gradients_of_recomputed_layers_begin_at_the_embedding(here, tiny_model, monkeypatch):
    """Without the hook, layers behind a frozen embedding have no gradient, and nothing says so."""
    directory = tiny_model("qwen3", num_hidden_layers=4, num_key_value_heads=4)
    monkeypatch.setattr(engine_lora, "_let_gradients_begin", lambda chunk: None)
    engine = engine_of(here, directory, FULL, "all-linear")
    fill(engine, some_adapters(engine))
    mine = some_sequences(2, engine.arch.vocab_size)
    metrics = engine.update(mine, lambda _, found: (-sum(o.log_probs.sum() for o in found), {}))
    assert metrics["grad_norm"] == 0.0
