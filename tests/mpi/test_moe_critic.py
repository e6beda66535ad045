"""A mixture of experts as a critic: values, loss and gradients are those of transformers' decoder
below a linear head."""

import pytest
import torch

from tests.mpi.engines_for_tests import layouts_of_world, some_sequences
from tests.mpi.mixtures import FULL, MODELS, engine_on, mixture
from tests.mpi.parity import TOLERANCE, gradients_equal, replica_share
from verl_hpc.layout.heads import HEAD_TENSORS

LAYOUTS = {
    1: [FULL],
    2: [{"tp": 2, "ep": 2}, {"dp": 2, "ep": 2}, {"pp": 2}],
    4: [{"tp": 2, "dp": 2, "ep": 2, "etp": 2}, {"tp": 2, "pp": 2, "ep": 2, **FULL}],
}


def pytest_generate_tests(metafunc):
    layouts_of_world(metafunc, LAYOUTS, model=list(MODELS))


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


@pytest.mark.world(*LAYOUTS)
def test_values_and_gradients(here, tiny_model, reference, sizes, model):
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

    num_tokens = sum(len(s) - 1 for s in sequences)
    loss = sum((critic(s) - 1).square().sum() for s in sequences) / num_tokens
    gradients_equal(
        engine,
        mine,
        lambda _, found: (sum((o.values - 1).square().sum() for o in found) / num_tokens, {}),
        (loss, critic, family),
    )
