"""Settings that name models on hubs."""

import subprocess
import sys

import pytest

from tests.unit.config.trees import parse
from tests.unit.sources.hubs import COMMIT, OTHER, hf_model, hf_repository, modelscope_repository
from verl_hpc.config.load import dump_config
from verl_hpc.errors import ModelError
from verl_hpc.sources.local import (
    found_models,
    model_settings,
    needs_fetch,
    put_settings,
    required_directory,
    with_local_models,
)

LORA = {"rank": 4, "path": "Org/Adapter"}


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("MODELSCOPE_CACHE", str(tmp_path / "ms"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "hub"


def config(**changes):
    given = {"model": {"path": "Org/Base", "tokenizer": "Org/Words"}, "lora": LORA}
    return parse(**given | {"roles": {"reward": {"path": "modelscope:Org/Judge"}}} | changes)


def test_every_setting_that_may_name_a_model():
    assert model_settings(config()) == {
        "model.path": "Org/Base",
        "model.tokenizer": "Org/Words",
        "lora.path": "Org/Adapter",
        "roles.reward.path": "modelscope:Org/Judge",
    }


def test_names_become_directories_and_everything_else_stays(cache, tmp_path):
    asked = config()
    base = hf_repository(cache, "Org/Base", COMMIT, {"model.safetensors": b""})
    words = hf_repository(cache, "Org/Words", OTHER, {"tokenizer.json": b"{}"})
    adapter = hf_repository(cache, "Org/Adapter", OTHER, {})
    judge = modelscope_repository(tmp_path / "ms/models", "Org/Judge")
    (judge / "model.safetensors").touch()
    names = ("model.path", "model.tokenizer", "lora.path", "roles.reward.path")
    directories = dict(zip(names, map(str, (base, words, adapter, judge)), strict=True))
    assert found_models(asked) == directories
    made = with_local_models(asked)
    assert made == put_settings(asked, directories)
    assert model_settings(made) == directories
    assert made.model_fields_set == asked.model_fields_set
    assert COMMIT in dump_config(made)
    assert put_settings(made, model_settings(asked)) == asked
    assert with_local_models(made) == made
    assert found_models(made) == {}


def test_what_is_in_no_cache_is_named_with_the_command_that_fetches_it(cache, tmp_path):
    hf_repository(cache, "Org/Words", OTHER, {"tokenizer.json": b"{}"})
    with pytest.raises(ModelError) as caught:
        found_models(config())
    told = str(caught.value)
    assert "model.path = Org/Base, lora.path = Org/Adapter, roles.reward.path = modelscope:" in told
    assert f"({tmp_path}/hub, {tmp_path}/ms/models)" in told
    command = "python -m verl_hpc fetch Org/Base Org/Adapter modelscope:Org/Judge"
    assert told.endswith(f"On a node with network: {command}")
    assert with_local_models(config()).model.path == "Org/Base"


def test_a_directory_here_comes_first(cache, tmp_path):
    hf_repository(cache, "Org/Base", COMMIT, {})
    (tmp_path / "Org/Base").mkdir(parents=True)
    assert with_local_models(config()).model.path == "Org/Base"
    assert not needs_fetch("Org/Base")
    assert str(required_directory("--model", "Org/Base")) == "Org/Base"


def test_a_download_that_was_cut_off(cache):
    index = b'{"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-2.safetensors"}}'
    files = {"model.safetensors.index.json": index, "model-00001-of-00002.safetensors": b""}
    hf_repository(cache, "Org/Base", COMMIT, files)
    with pytest.raises(ModelError) as caught:
        found_models(parse(model={"path": "Org/Base"}))
    told = str(caught.value)
    assert f"model.path = Org/Base@{COMMIT} is not whole in the cache" in told
    assert "missing: model-2.safetensors" in told
    assert told.endswith(f"python -m verl_hpc fetch Org/Base@{COMMIT}")


def test_verbs_take_names(cache, small_llama):
    hf_model(cache, "Org/Base", COMMIT, small_llama)
    words = ["reshard", "--train", "tp=1", "--rollout", "tp=1", "--gpus-per-node", "1"]
    command = [sys.executable, "-m", "verl_hpc", *words, "--model"]
    done = subprocess.run([*command, "Org/Base"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    refused = subprocess.run([*command, "Org/Other"], capture_output=True, text=True)
    assert refused.returncode == 1
    assert "--model = Org/Other: no such directory here" in refused.stderr
    assert "verl_hpc fetch Org/Other" in refused.stderr
