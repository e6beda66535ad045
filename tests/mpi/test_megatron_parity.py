"""Megatron-core on every layout computes what transformers computes, within 1e-5 in float32.

Log-probs, entropy, loss, the gradient of every range that a rank's optimizer owns, and the gradient
norm, of every family in `layout.families`; and critics and sequence classifiers, below their linear
heads. Tensor, sequence, pipeline, context and expert parallelism, virtual stages, recomputation.

Layouts take models in turn: each dense family is on one of those of four ranks. All models on all
layouts take --slow.
"""

from __future__ import annotations

from itertools import product

import pytest
import torch

from tests.mpi.engines_for_tests import layouts, layouts_of_world, responses, some_sequences
from tests.mpi.mixtures import DENSE, MODELS, engine_on, mixture
from tests.mpi.parity import (
    TOLERANCE,
    fill_head,
    gradients_of,
    head_weight,
    mean_loss_equals,
    num_outputs,
    once,
    outputs_equal,
    reference_update,
    replica_share,
    score_loss,
    update_equals,
)
from tests.slow import all_slow
from verl_hpc.layout.heads import HEAD_TENSORS

# Of data-parallel ranks (dp), neighbours share sequences (cp).
LAYOUTS = {
    1: layouts("one"),
    2: layouts("tp2 tp2-sp pp2 pp2-vpp2 dp2 dp2-cp2 dp2-cp2-full"),
    4: layouts(
        "tp2-pp2 tp2-pp2-sp tp2-pp2-vpp2-sp-selective tp2-dp2 pp2-dp2-vpp2 tp4 "
        "dp4-cp4 dp4-cp2 tp2-dp2-cp2-sp-full pp2-dp2-cp2 pp2-vpp2-dp2-cp2-full"
    ),
    8: layouts("tp2-pp2-dp2-cp2-sp dp8-cp4 tp2-dp4-cp4-sp pp2-dp4-cp4"),
}
MIXED = {
    1: layouts("one full"),
    2: layouts("dp2 dp2-ep2 dp2-etp2 dp2-ep2-full tp2 tp2-ep2 tp2-etp2 pp2 pp2-vpp2 dp2-cp2-ep2"),
    4: layouts(
        "tp2-dp2-ep2-etp2 dp4-ep2-etp2 pp2-vpp2-dp2-ep2 tp2-dp2-cp2-ep4 pp2-dp2-cp2-ep2-full"
    ),
    8: layouts("tp2-pp2-dp2-ep4 tp2-pp2-dp2-ep2-etp2 tp2-dp4-ep4-etp2"),
}
FURTHER = {
    4: layouts(
        "tp2-pp2-ep2 tp2-dp2-ep4 tp2-dp2-etp2 tp2-pp2-etp2-full dp4-cp2-ep4 "
        "tp2-pp2 tp2-dp2 tp2-dp2-ep2 pp2-dp2 pp2-dp2-ep2 dp4-ep4 tp4-ep2 dp4-cp4-ep2 "
        "tp2-dp2-cp2-ep2-etp2"
    ),
    8: layouts("tp2-pp2-dp2 tp2-pp2-dp2-ep2"),
}
"""Each of their axes is in one of the others; experts of four ranks of tensor parallelism also
compute in test_reshard."""
HEADS = {
    1: layouts("full"),
    2: layouts("tp2-ep2 dp2-ep2 pp2 dp2-cp2 pp2-vpp2"),
    4: layouts("tp2-dp2-ep2-etp2 tp2-pp2-ep2-full dp4-cp2 tp2-dp2-cp2-ep4"),
}
WITHOUT_SCORES = ("glm",)
"""Models of families that transformers has no sequence classifier of."""
FILES = {"score": {"head": "score", "seed": 1}, "value": {}}
"""What an engine with this head is loaded from; of the first seed two experts of a token are 4e-8
apart, so that rounding chooses."""


def pytest_generate_tests(metafunc):
    if "head" in metafunc.fixturenames:
        models = [model for model in MODELS if model not in WITHOUT_SCORES]
        layouts_of_world(metafunc, HEADS, head=list(HEAD_TENSORS), model=models)
    elif "model" in metafunc.fixturenames:
        layouts_of_world(metafunc, MIXED, FURTHER, model=list(MODELS))
    else:
        families = [(family, tied) for tied, family in product((False, True), DENSE)]
        layouts_of_world(metafunc, LAYOUTS, dense=families)


@pytest.mark.world(*LAYOUTS)
def test_dense_models_equal_transformers(here, tiny_model, reference, sizes, dense):
    directory = tiny_model(*dense, num_hidden_layers=4)
    sequences = some_sequences(4, 256) + responses(2, 4, 256)
    if "cp" in sizes:  # shorter than the pieces that it is cut into
        sequences.append(torch.tensor([3, 5]))
    engine = equals(here, directory, dense[0], sizes | {"sp": "sp" in sizes}, reference, sequences)
    assert "cp" in sizes or sum(engine._planner.plan(sequences).shared) > 0


@pytest.mark.world(*MIXED)
def test_mixtures_equal_transformers(here, tiny_model, reference, sizes, model):
    directory, family = mixture(tiny_model, model)
    sequences = some_sequences(5, 256) + responses(2, 4, 256)
    equals(here, directory, family, sizes, reference, sequences)


@pytest.mark.world(4)
@pytest.mark.parametrize(
    "layout, layers, kv_heads",
    [("pp4", 6, 4), ("tp2-pp2-vpp2", 3, 4), ("tp4", 2, 2)],
    ids=["six layers on four stages", "three layers on four virtual stages", "tp above kv heads"],
)
def test_layouts_that_do_not_divide_evenly(here, tiny_model, reference, layout, layers, kv_heads):
    directory = tiny_model("qwen2", True, num_hidden_layers=layers, num_key_value_heads=kv_heads)
    equals(here, directory, "qwen2", *layouts(layout), reference, some_sequences(8, 256))


@pytest.mark.world(4)
@pytest.mark.parametrize("layout, layers", all_slow(("pp4", 6), ("pp2-vpp2-dp2-ep2", 5)))
def test_stages_without_experts(here, tiny_model, reference, layout, layers):
    """The first stage has dense layers alone, and layers do not divide evenly."""
    sizes = {"num_hidden_layers": layers, "first_k_dense_replace": 2}
    directory, family = mixture(tiny_model, "latent", **sizes)
    equals(here, directory, family, *layouts(layout), reference, some_sequences(8, 256))


def equals(here, directory, family, sizes, reference, sequences):
    """Hold an engine's outputs and update against transformers; the engine."""
    engine = engine_on(here, directory, sizes)
    share = replica_share(engine.layout)
    mine = sequences[share]

    def by_transformers():
        model = reference(directory)
        return model.outputs(sequences), reference_update(model, family, sequences)

    outputs, update = once(here, by_transformers)
    outputs_equal(engine, mine, outputs[share])
    mean_loss_equals(engine, mine, sequences, *update)
    return engine


@pytest.mark.world(*HEADS)
def test_linear_heads_equal_transformers(here, tiny_model, reference, sizes, head, model):
    """A critic's values, and the score of a sequence's last token."""
    directory, family = mixture(tiny_model, model, **FILES[head])
    engine = engine_on(here, directory, sizes, head=head)
    fill_head(engine)
    part = slice(-1, None) if head == "score" else slice(-1)
    sequences = some_sequences(9, 256)

    def by_transformers():
        decoder = reference(directory).model.model
        weight = head_weight(engine.arch.hidden_size).requires_grad_()
        outputs = [decoder(s[None]).last_hidden_state[0, part] @ weight[0] for s in sequences]
        loss = sum(o.square().sum() for o in outputs) / num_outputs(head, sequences)
        decoder.zero_grad()
        loss.backward()
        gradients = {f"model.{n}": g for n, g in gradients_of(decoder, family).items()}
        gradients[HEAD_TENSORS[head]] = weight.grad
        return [o.detach() for o in outputs], gradients, loss.item()

    wanted, gradients, loss = once(here, by_transformers)
    share = replica_share(engine.layout)
    outputs = engine.infer(sequences[share])
    for output, expected in zip(outputs, wanted[share], strict=True):
        (given,) = (v for v in (output.values, output.scores) if v is not None)
        torch.testing.assert_close(given, expected, atol=TOLERANCE, rtol=0)
    update = lambda: engine.update(sequences[share], score_loss(head, sequences))  # noqa: E731
    update_equals(engine, update, gradients, loss)
