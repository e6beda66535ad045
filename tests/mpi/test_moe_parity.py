"""Mixtures of experts on Megatron-core compute what transformers computes, within 1e-5 in float32.

Log-probs, entropy, loss, the gradient of every range that a rank's optimizer owns, and the
gradient norm; experts over tensor- and data-parallel ranks, whole and split, in pipelines,
recomputed; and as a critic, below a linear head. Models take turns; with --slow all are on all
layouts, and on every one of 1 to 8 ranks with TP, PP and ETP of at most 2, EP and DP of at most 4.
"""

import pytest
import torch

from tests.mpi.engines_for_tests import layouts, layouts_of_world, responses, some_sequences
from tests.mpi.mixtures import MODELS, engine_on, every_layout_of_world, mixture
from tests.mpi.parity import (
    TOLERANCE,
    gradients_equal,
    mean_loss_equals,
    num_targets,
    outputs_equal,
    replica_share,
)
from verl_hpc.layout.heads import HEAD_TENSORS

LAYOUTS = {
    1: layouts("one full"),
    2: layouts("dp2 dp2-ep2 dp2-etp2 dp2-ep2-full tp2 tp2-ep2 tp2-etp2 pp2 pp2-vpp2"),
    4: layouts(
        "tp2-dp2-ep4 tp2-dp2-etp2 tp2-dp2-ep2-etp2 dp4-ep2-etp2 tp2-pp2-ep2 "
        "tp2-pp2-etp2-full pp2-dp2-ep2 pp2-vpp2-dp2-ep2"
    ),
    8: layouts("tp2-pp2-dp2-ep4 tp2-pp2-dp2-ep2-etp2 tp2-dp4-ep4-etp2"),
}

FURTHER = {4: layouts("tp2-dp2 tp2-dp2-ep2 dp4-ep4 tp4-ep2")}
"""Each of their axes is in one of the others; experts of four ranks of tensor parallelism also
compute in test_moe_reshard."""


OF_CRITICS = {
    1: layouts("full"),
    2: layouts("tp2-ep2 dp2-ep2 pp2"),
    4: layouts("tp2-dp2-ep2-etp2 tp2-pp2-ep2-full"),
}


def pytest_generate_tests(metafunc):
    is_critic = "critic" in metafunc.function.__name__
    cases = (OF_CRITICS,) if is_critic else (LAYOUTS, FURTHER)
    layouts_of_world(metafunc, *cases, model=list(MODELS))
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
    mean_loss_equals(engine, mine, expected, family, sequences)


class Critic(torch.nn.Module):
    """Parameters have the names of the layout room."""

    def __init__(self, decoder, head: torch.Tensor) -> None:
        super().__init__()
        self.model = decoder
        module, weight = HEAD_TENSORS["value"].split(".")
        assert weight == "weight"
        linear = torch.nn.Linear(head.shape[1], 1, bias=False)
        linear.weight.data.copy_(head)
        self.add_module(module, linear)
        self.head = module

    def forward(self, sequence: torch.Tensor) -> torch.Tensor:
        """(L - 1,) of an (L,) sequence."""
        hidden = self.model(sequence[None]).last_hidden_state[0]
        return getattr(self, self.head)(hidden)[:-1, 0]


@pytest.mark.world(*OF_CRITICS)
def test_a_critics_values_and_gradients(here, tiny_model, reference, sizes, model):
    directory, family = mixture(tiny_model, model)
    engine = engine_on(here, directory, sizes, head="value")
    size = engine.arch.hidden_size
    head = torch.randn(1, size, generator=torch.Generator().manual_seed(3)) / size**0.5
    for name, weight in engine.weights.items():
        if "output_layer" in name:
            weight.copy_(head)
    engine.weights_changed()
    critic = Critic(reference(directory).model.model, head)

    sequences = some_sequences(9, engine.arch.vocab_size)
    mine = sequences[replica_share(engine.layout)]
    for sequence, output in zip(mine, engine.infer(mine), strict=True):
        with torch.no_grad():
            torch.testing.assert_close(output.values, critic(sequence), atol=TOLERANCE, rtol=0)

    num_tokens = num_targets(sequences)
    loss = sum((critic(s) - 1).square().sum() for s in sequences) / num_tokens
    gradients_equal(
        engine,
        mine,
        lambda _, found: (sum((o.values - 1).square().sum() for o in found) / num_tokens, {}),
        (loss, critic, family),
    )
