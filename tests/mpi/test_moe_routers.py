"""The losses of routers, and the load of experts, are those of whole sequences on one rank, in
every layout, however rows are packed."""

import pytest
import torch

from tests.mpi.engines_for_tests import (
    build_engine,
    layouts_of_world,
    responses,
    some_sequences,
)
from tests.mpi.mixtures import FULL, MODELS, engine_on, mixture
from tests.mpi.parity import gradients_equal, replica_share
from verl_hpc.config.model import RouterConfig
from verl_hpc.layout.megatron import TrainLayout

LAYOUTS = {
    1: [{}, FULL],
    2: [
        {"dp": 2},
        {"tp": 2},
        {"dp": 2, "ep": 2, **FULL},
        {"tp": 2, "etp": 2},
        {"pp": 2},
        {"dp": 2, "cp": 2},
    ],
    4: [
        {"tp": 2, "dp": 2, "ep": 4},
        {"tp": 2, "pp": 2, "ep": 2, **FULL},
        {"pp": 2, "vpp": 2, "dp": 2, "ep": 2},
        {"tp": 2, "dp": 2, "cp": 2, "ep": 2},
    ],
}
SETTINGS = [{"seq_aux_loss": 0.3, "z_loss": 0.05}, {"z_loss": 0.1}, {}]


def pytest_generate_tests(metafunc):
    layouts_of_world(metafunc, LAYOUTS, settings=SETTINGS, model=["normalised", "mixtral"])


def logits_of(model, sequence) -> list[torch.Tensor]:
    """Of the routers of all layers, (L, experts)."""
    found = []
    gates = [layer.mlp.gate for layer in model.model.layers]
    hooks = [gate.register_forward_hook(lambda *x: found.append(x[2][0])) for gate in gates]
    model(sequence[None])
    for hook in hooks:
        hook.remove()
    return found


def of_routers(model, sequences, chosen) -> tuple[torch.Tensor, torch.Tensor, float]:
    """The two losses, summed over layers, and the load, slowly."""
    even, squares, num_tokens = torch.zeros(()), torch.zeros(()), sum(map(len, sequences))
    loads: dict[int, torch.Tensor] = {}
    for sequence in sequences:
        for layer, logits in enumerate(logits_of(model, sequence)):
            length, experts = logits.shape
            probs = logits.softmax(-1)
            for expert in range(experts):
                sent = sum(expert in row for row in logits.topk(chosen).indices.tolist())
                share = sent * experts / (chosen * length)
                even = even + share * probs[:, expert].mean() / len(sequences)
                counts = loads.setdefault(layer, torch.zeros(experts))
                counts[expert] += sent
            squares = squares + logits.exp().sum(-1).log().square().sum() / num_tokens
    load = torch.stack([counts.max() / counts.mean() for counts in loads.values()]).mean()
    return even, squares, load.item()


@pytest.mark.world(*LAYOUTS)
def test_losses_and_load(here, tiny_model, reference, sizes, settings, model):
    directory, family = mixture(tiny_model, model)
    router = RouterConfig(**settings) if settings else None
    engine = engine_on(here, directory, sizes, router=router)
    expected = reference(directory)
    vocab_size = engine.arch.vocab_size
    sequences = some_sequences(5, vocab_size) + responses(2, 4, vocab_size)
    mine = sequences[replica_share(engine.layout)]
    engine.infer(mine)  # of which nothing may be counted

    num_tokens = sum(len(s) - 1 for s in sequences)
    loss = -sum(expected.log_probs(s).sum() for s in sequences) / num_tokens
    even, squares, load = of_routers(expected.model, sequences, chosen=2)
    added = settings.get("seq_aux_loss", 0.0) * even + settings.get("z_loss", 0.0) * squares
    metrics = gradients_equal(
        engine,
        mine,
        lambda _, found: (-sum(o.log_probs.sum() for o in found) / num_tokens, {}),
        (loss, expected.model, family),
        added,
    )
    wanted = {"expert_load": load}
    wanted |= {"seq_aux_loss": even.item() / 4} if "seq_aux_loss" in settings else {}
    wanted |= {"z_loss": squares.item() / 4} if settings else {}
    found = {n: metrics[n] for n in metrics if n in ("expert_load", "seq_aux_loss", "z_loss")}
    assert found == pytest.approx(wanted, rel=1e-5)


@pytest.mark.world(1)
def test_routers_become_even(here, tiny_model):
    """With nothing but the loss of routers to learn."""
    family, fields = MODELS["normalised"]
    directory = tiny_model(family, num_hidden_layers=2, **fields)
    router = RouterConfig(seq_aux_loss=1.0)
    engine = build_engine(here, directory, TrainLayout(), lr=3e-3, router=router)
    sequences = some_sequences(16, engine.arch.vocab_size)
    found = [
        engine.update(sequences, lambda _, o: (sum(x.log_probs.sum() for x in o) * 0.0, {}))
        for _ in range(20)
    ]
    assert found[-1]["seq_aux_loss"] < 0.9 * found[0]["seq_aux_loss"]
    assert found[-1]["expert_load"] < found[0]["expert_load"]
