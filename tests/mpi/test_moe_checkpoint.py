"""Steps of a mixture of experts open in every layout of its experts, and training continues."""

from functools import partial

import pytest

from tests.mpi import test_checkpoint as steps
from tests.mpi.engines_for_tests import same
from tests.mpi.mixtures import MODELS
from tests.mpi.sft_for_tests import sft_config
from tests.slow import all_slow
from verl_hpc.errors import ConfigError
from verl_hpc.trainer.build import build_run

pytestmark = pytest.mark.world(4)

SPLIT = {"tensor_parallel": 2, "sequence_parallel": True}
LAYOUTS = [
    {**SPLIT, "expert_parallel": 4},
    {**SPLIT, "expert_parallel": 2, "expert_tensor_parallel": 2},
    {**SPLIT},
    {"pipeline_parallel": 2},
    {"pipeline_parallel": 2, "context_parallel": 2, "expert_parallel": 2},
]
"""In the fourth experts share the optimizer of the other weights; elsewhere they have one."""
MIXTURES = ("latent", "normalised", "glm", "gated")
WHOLE = [sizes for sizes in LAYOUTS if "expert_tensor_parallel" not in sizes]
"""Layouts whose ranks have whole experts."""


@pytest.fixture
def configure(tiny_model, shared_directory, request):
    def make(parallel, name="normalised"):
        family, fields = MODELS[name]
        router = {"bias_update_rate": 0.01} if name in ("latent", "glm") else None
        fields = {"num_hidden_layers": 2, "num_key_value_heads": 4} | fields
        directory = tiny_model(family, **fields)
        model = {"path": str(directory), "dtype": "float32", "router": router}
        mixtures = shared_directory / "mixtures"
        return sft_config(request.node.name, mixtures, directory, parallel, model=model)

    return make


@pytest.mark.parametrize(
    "name, layouts",
    [
        ("latent", LAYOUTS[1::3]),
        *all_slow(*((name, LAYOUTS) for name in MIXTURES), ("sinks", WHOLE)),
    ],
    ids=lambda given: given if isinstance(given, str) else len(given),
)
def test_a_step_opens_in_the_next_layout_and_training_goes_on(here, configure, name, layouts):
    """The bias of routers changes in every update, by no optimizer."""
    steps.goes_on_from_layout_to_layout(here, partial(configure, name=name), layouts)


def test_tensor_parallelism_needs_sequence_parallelism(here, configure):
    with pytest.raises(ConfigError, match=r"parallel.sequence_parallel = false: a mixture of"):
        build_run(here, configure({"tensor_parallel": 2}))


def test_offloaded_parts_come_back(here, configure):
    """Gradients and states of experts lie in buffers of their own, biases in none."""
    run = build_run(here, configure(LAYOUTS[0], "latent"))
    steps.train(run, 0, 2)
    before = steps.parameters(here, run)
    engine = run.roles["actor"].training
    states = {n: t.clone() for n, t in engine.optimizer_tensors().items()}
    experts = [b for c in engine._chunks for b in c.expert_parallel_buffers]
    assert experts
    for part in ("optimizer", "gradients", "parameters"):
        assert engine.offload(part) > 0
    assert all(buffer.grad_data.untyped_storage().nbytes() == 0 for buffer in experts)
    for part in ("parameters", "gradients", "optimizer"):
        engine.onload(part)
    same(steps.parameters(here, run), before)
    same(engine.optimizer_tensors(), states)
