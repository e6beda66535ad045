"""Roles of a run whose prompts have images."""

from types import SimpleNamespace

import pytest

from verl_hpc.config.model import ModelConfig
from verl_hpc.errors import ConfigError, ModelError
from verl_hpc.trainer.build import _check_images, _resolved


def of(family):
    return SimpleNamespace(family=family, published=None)


def test_all_models_of_a_run_with_images_read_them():
    _check_images({"actor": of("llama"), "teacher": of("qwen3_vl")})
    _check_images({"actor": of("qwen3_vl"), "reference": of("qwen2_5_vl")})
    with pytest.raises(ModelError, match=r"roles.critic: a llama reads no images, .* a qwen3_vl"):
        _check_images({"actor": of("qwen3_vl"), "critic": of("llama")})


def test_a_tower_is_frozen_where_there_is_one():
    role = SimpleNamespace(model=ModelConfig(path="m", vision_tower="frozen"))
    with pytest.raises(ConfigError, match=r"vision_tower = frozen: a llama reads no images"):
        _resolved(SimpleNamespace(arch=of("llama")), role)
