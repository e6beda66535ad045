"""The engine of transformers on models that it could not sample from."""

import pytest
import torch
from safetensors.torch import load_file

from tests.generated import generated
from tests.unit.rollout.test_check_model import change
from verl_hpc.config.rollout import RolloutConfig
from verl_hpc.errors import ModelError, TrainingError
from verl_hpc.layout.architecture import read_architecture
from verl_hpc.rollout.hf import HfEngine
from verl_hpc.rollout.protocol import Sampling
from verl_hpc.runtime.world import World
from verl_hpc.testing.tiny import make_tiny_model

WORLD = World(0, 1, 0, 1, 0, (0,), "host", "cpu")


@pytest.fixture
def model(tmp_path):
    return make_tiny_model(tmp_path, "qwen2")


def engine_of(model):
    """An engine with the weights of the model's files, which a refit gives it in a run."""
    path, config = str(model), RolloutConfig(max_prompt_tokens=8, max_response_tokens=4)
    engine = HfEngine(WORLD, read_architecture(model), path, path, ((0,),), config, "float32")
    for name, weight in load_file(model / "model.safetensors").items():
        engine.weights[name].copy_(weight)
    return engine


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("value", [float("inf"), float("nan")])
def test_logits_that_are_not_finite_are_named(model, temperature, value):
    engine = engine_of(model)
    sampling = Sampling(max_tokens=2, temperature=temperature)
    assert len(generated(engine, [[5, 6]], sampling, [1])) == 1
    with torch.no_grad():
        engine.weights["model.norm.weight"].fill_(value)
    with pytest.raises(TrainingError, match="the model's logits are infinite or NaN"):
        generated(engine, [[5, 6]], sampling, [1])


def test_a_head_dim_that_is_null_is_the_usual_one(model):
    change(model / "config.json", head_dim=None)
    assert len(generated(engine_of(model), [[5, 6]], Sampling(max_tokens=2), [1])) == 1


@pytest.mark.parametrize("fields", [{"attn_implementation": "nope"}, {"initializer_range": -1.0}])
def test_what_transformers_cannot_build_is_named(model, fields):
    change(model / "config.json", **fields)
    with pytest.raises(
        ModelError, match=r"config\.json: transformers cannot build it: \w+Error: ."
    ):
        engine_of(model)
