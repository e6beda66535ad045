"""Adapters compute what transformers computes with merged weights, within 1e-5 in float32.

Log-probs, loss, the gradient of every range of A and B that a rank's optimizer owns, and the
gradient norm: A's is scale B^T dW and B's scale dW A^T, of transformers' dW.
"""

import pytest
import torch

from tests.mpi import parity
from tests.mpi.conftest import Reference
from tests.mpi.engines_for_tests import (
    engine_of_sizes,
    layouts,
    layouts_of_world,
    same,
    some_sequences,
)
from tests.mpi.lora_for_tests import fill, merged, some_adapters
from tests.mpi.mixtures import FULL, mixture
from verl_hpc.config.lora import LoraConfig
from verl_hpc.engines.megatron import lora as engine_lora
from verl_hpc.layout.adapters import a_of, b_of

DENSE = {
    1: layouts("one full selective"),
    2: layouts("tp2 tp2-sp tp2-sp-full dp2 pp2 pp2-full pp2-vpp2"),
    4: layouts("tp2-sp-pp2 tp2-dp2-sp-full tp4"),
}
EXPERTS = {
    1: layouts("one full"),
    2: layouts("dp2-ep2 dp2-etp2 tp2-sp tp2-ep2-sp tp2-etp2-sp pp2-full"),
    4: layouts("tp2-dp2-ep2-etp2-sp pp2-dp2-ep2"),
}
FURTHER = {4: layouts("dp4-ep2-etp2-full tp2-dp2-ep4-sp")}
TARGETS = {
    "all": ("all-linear", False),
    "all-tied": ("all-linear", True),
    "qv": (["q_proj", "v_proj"], True),
    "kou": (["k_proj", "o_proj", "up_proj"], False),
}


def pytest_generate_tests(metafunc):
    experts = "experts" in metafunc.function.__name__
    cases, further = (EXPERTS, FURTHER) if experts else (DENSE, {})
    models = ["normalised", "mixtral"]
    layouts_of_world(metafunc, cases, further, chosen=list(TARGETS), model=models)


def engine_of(here, directory, sizes, targets, **more):
    lora = LoraConfig(rank=3, alpha=6.0, target_modules=targets)
    return engine_of_sizes(here, directory, sizes, max_tokens=64, lora=lora, **more)


def fill_reference(reference, family, adapters, scale) -> None:
    """Merge into transformers' parameters, of which some are stacked."""
    named = {n: p.data for n, p in reference.model.named_parameters()}
    for name, memory in parity.named_as(family, parity.by_checkpoint_name(named)).items():
        memory.copy_(merged(memory, name, adapters, scale))


def check(here, directory, family, engine):
    scale = 2.0
    adapters = some_adapters(engine)
    fill(engine, adapters)
    base = {n: w.clone() for n, w in engine.weights.items() if ".lora_" not in n}
    sequences = some_sequences(6, engine.arch.vocab_size)

    def by_transformers():
        model = Reference(directory)
        plain = model.outputs(sequences)
        fill_reference(model, family, adapters, scale)
        update = parity.reference_update(model, family, sequences)
        return plain, model.outputs(sequences), *update

    plain, expected, loss, gradients = parity.once(here, by_transformers)
    share = parity.replica_share(engine.layout)
    mine = sequences[share]
    moved = 0.0
    outputs = engine.infer(mine)
    with engine.without_adapters():
        bare = engine.infer(mine)
    pairs = zip(outputs, bare, expected[share], plain[share], strict=True)
    for output, base_output, (log_probs, _), (without, _) in pairs:
        torch.testing.assert_close(output.log_probs, log_probs, atol=parity.TOLERANCE, rtol=0)
        torch.testing.assert_close(base_output.log_probs, without, atol=parity.TOLERANCE, rtol=0)
        moved = max(moved, (log_probs - without).abs().max().item())
    assert moved > 0.01  # or nothing was tested

    wanted = {}
    for name, gradient in gradients.items():
        a, b = f"{a_of(name)}.weight", f"{b_of(name)}.weight"
        if a in adapters:
            wanted[a] = scale * adapters[b].T @ gradient
            wanted[b] = scale * gradient @ adapters[a].T
    assert wanted.keys() == adapters.keys()
    parity.update_equals(
        engine,
        lambda: engine.update(mine, parity.summed(parity.num_targets(sequences))),
        wanted,
        loss,
        engine.trained_map,
    )
    assert all(".lora_" in one.name for one in engine.optimizer.owned_ranges())
    same({name: engine.weights[name] for name in base}, base)
    assert all(w.any() for n, w in engine.weights.items() if ".lora_" in n)


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
        engine.update(mine, lambda _, o: (sum((x.values - 1).square().sum() for x in o), {}))
    changed = {n for n, w in engine.weights.items() if not torch.equal(w, before[n])}
    trained = {n for n in before if "linear_qkv.lora_" in n or "output_layer" in n}
    held = {r.view.name for r in engine.trained_map.held_by(here.world.rank)}
    assert changed == held == trained
    assert "value_head.weight" in engine.trained_map.tensors


@pytest.mark.world(1)
def test_gradients_of_recomputed_layers_begin_at_the_embedding(here, tiny_model, monkeypatch):
    """Without the hook, layers behind a frozen embedding have no gradient, and nothing says so."""
    directory = tiny_model("qwen3", num_hidden_layers=4, num_key_value_heads=4)
    monkeypatch.setattr(engine_lora, "_let_gradients_begin", lambda chunk: None)
    engine = engine_of(here, directory, FULL, "all-linear")
    fill(engine, some_adapters(engine))
    mine = some_sequences(2, engine.arch.vocab_size)
    assert engine.update(mine, parity.summed(1))["grad_norm"] == 0.0
