"""Models whose positions are scaled: Megatron-core and vLLM compute what transformers computes.

On two ranks each of them has pieces of every sequence, and vLLM half of every layer.
"""

import json
import shutil
from contextlib import closing

import pytest
import torch

from tests.mpi.conftest import VLLM_HEADS
from tests.mpi.engines_for_tests import build_engine, loaded_rollout
from tests.mpi.parity import TOLERANCE, outputs_equal
from tests.mpi.test_reshard import ROLLOUT, computed_alike
from verl_hpc.layout.architecture import read_architecture
from verl_hpc.layout.generation import contiguous_groups
from verl_hpc.layout.megatron import TrainLayout

pytestmark = pytest.mark.world(1, 2)

SCALED = {
    "llama3": {
        "factor": 4.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 3.0,
        "original_max_position_embeddings": 32,
    },
    "linear": {"factor": 3.0},
    "yarn": {"factor": 4.0, "original_max_position_embeddings": 64},
    "yarn, all settings": {
        "rope_type": "yarn",
        "factor": 8.0,
        "original_max_position_embeddings": 40,
        "beta_fast": 16.0,
        "beta_slow": 2.0,
        "attention_factor": 1.3,
        "truncate": False,
    },
}


@pytest.fixture
def scaled(tiny_model, here):
    def make(kind: str):
        settings = {"rope_type": kind, "rope_theta": 500.0} | SCALED[kind]
        return tiny_model("qwen3", **VLLM_HEADS, rope_parameters=settings)

    return make


@pytest.fixture
def sequences():
    generator = torch.Generator().manual_seed(3)
    return [torch.randint(0, 256, (length,), generator=generator) for length in (150, 9, 60)]


@pytest.mark.parametrize("kind", SCALED)
def test_training_equals_transformers(here, scaled, reference, sequences, kind):
    directory = scaled(kind)
    assert read_architecture(directory).rope_scaling
    size = here.world.size
    engine = build_engine(here, directory, TrainLayout(dp=size, cp=size), max_tokens=256, lr=None)
    expected = reference(directory).outputs(sequences)
    plain = reference(unscaled_copy(here, directory)).outputs(sequences[:1])
    outputs_equal(engine, sequences, expected)
    # Or nothing that scaling changes would be compared.
    change = expected[0][0] - plain[0][0]
    assert change.abs().max() > 100 * TOLERANCE


def unscaled_copy(here, directory):
    """A model with these weights and positions that are not scaled."""
    plain = directory.with_name(directory.name + "-plain")
    if here.world.rank == 0:
        shutil.copytree(directory, plain, dirs_exist_ok=True)
        file = plain / "config.json"
        config = json.loads(file.read_text())
        config["rope_parameters"] = {"rope_type": "default", "rope_theta": 500.0}
        file.write_text(json.dumps(config))
    here.control.barrier()
    return plain


@pytest.mark.parametrize("kind", ["yarn", "linear"])
def test_vllm_computes_what_training_does(here, scaled, kind):
    directory, size = scaled(kind), here.world.size
    trainer = build_engine(here, directory, TrainLayout(dp=size, cp=size), max_tokens=256, lr=None)
    replicas = contiguous_groups(0, size - 1, size)
    with closing(loaded_rollout(here, directory, replicas, ROLLOUT)) as rollout:
        computed_alike(here, trainer, rollout, replicas)
