"""What is found wrong with a model directory before an engine is built on it."""

import json
import os

import pytest

from verl_hpc.errors import ModelError
from verl_hpc.rollout.factory import check_model
from verl_hpc.testing.tiny import make_tiny_model


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return make_tiny_model(tmp_path_factory.mktemp("model"), "qwen2")


@pytest.fixture
def model(whole, tmp_path):
    for name in ("config.json", "generation_config.json"):
        (tmp_path / name).write_bytes((whole / name).read_bytes())
    return tmp_path


def change(file, **fields):
    file.write_text(json.dumps(json.loads(file.read_text()) | fields))


def test_a_family_that_another_ones_class_computes(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "kimi_k2"}')
    check_model(tmp_path)


def test_a_whole_one_passes_with_and_without_settings_of_generation(model):
    check_model(model)
    change(model / "config.json", eos_token_id=None, head_dim=None)
    (model / "generation_config.json").unlink()
    check_model(model)


@pytest.mark.parametrize(
    "fields",
    [{"attention_dropout": "x"}, {"initializer_range": None}, {"layer_types": ["x"]},
     {"eos_token_id": "x"}, {"use_cache": 5}, {"id2label": 5}],
)  # fmt: skip
def test_what_transformers_does_not_take_is_named(model, fields):
    change(model / "config.json", **fields)
    with pytest.raises(ModelError, match=r"config\.json is refused by transformers: .*Error") as e:
        check_model(model)
    assert next(iter(fields)) in str(e.value) or "id2label" in fields


@pytest.mark.parametrize("content", ["{", "[]", '{"eos_token_id": "x"}', '{"eos_token_id": [1.5]}'])
def test_damaged_settings_of_generation_are_not_read_past(model, content):
    (model / "generation_config.json").write_text(content)
    with pytest.raises(ModelError, match=r"generation_config\.json"):
        check_model(model)


def test_a_pipe_of_that_name_is_not_waited_for(model):
    (model / "generation_config.json").unlink()
    os.mkfifo(model / "generation_config.json")
    with pytest.raises(ModelError, match=r"generation_config\.json is not a file"):
        check_model(model)
