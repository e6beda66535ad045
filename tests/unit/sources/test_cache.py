"""Names on hubs, and where caches have them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from huggingface_hub import try_to_load_from_cache

from tests.unit.sources.hubs import COMMIT, OTHER, hf_repository, modelscope_repository
from verl_hpc.sources.cache import HubName, hf_cache, locate, parse_name, repository, source_of

NAME = "Org/Some-Model.5"
VARIABLES = ("HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "XDG_CACHE_HOME")


@pytest.fixture(autouse=True)
def caches(tmp_path, monkeypatch):
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("MODELSCOPE_CACHE", str(tmp_path / "ms"))
    return tmp_path


def found(text):
    name = parse_name(text)
    assert name is not None
    return locate(name)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("Qwen/Qwen3-8B", HubName("hf", "Qwen/Qwen3-8B")),
        ("hf:Qwen/Qwen2.5-7B@v1.0", HubName("hf", "Qwen/Qwen2.5-7B", "v1.0")),
        ("a/b@refs/pr/3", HubName("hf", "a/b", "refs/pr/3")),
        ("modelscope:Qwen/Qwen3-8B@master", HubName("modelscope", "Qwen/Qwen3-8B", "master")),
    ],
)
def test_names(text, name):
    assert parse_name(text) == name
    assert parse_name(str(name)) == name


@pytest.mark.parametrize(
    "text",
    ["model", "/a/b", "./a/b", "../a", "a/b/c", "a/..", "a/b@../../x", "a/b@", "s3:a/b", "a/b c"],
)
def test_paths_are_no_names(text):
    assert parse_name(text) is None


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"HF_HOME": "/models/hf"},
        {"XDG_CACHE_HOME": "/scratch/cache"},
        {"HF_HOME": "~/hf", "HUGGINGFACE_HUB_CACHE": "/old/hub"},
        {"HF_HOME": "/models/hf", "HF_HUB_CACHE": "$PLACE/hub", "PLACE": "/here"},
    ],
)
def test_the_cache_is_where_huggingface_hub_has_it(environ, monkeypatch):
    monkeypatch.delenv("HF_HUB_CACHE")
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    command = "from huggingface_hub import constants; print(constants.HF_HUB_CACHE)"
    done = subprocess.run(
        [sys.executable, "-c", command], capture_output=True, text=True, check=True, env=os.environ
    )
    assert hf_cache() == Path(done.stdout.strip())


def test_a_name_is_the_snapshot_of_its_branch(caches):
    snapshot = hf_repository(caches / "hub", NAME, COMMIT, {"config.json": b"{}"})
    assert found(NAME) == snapshot
    theirs = try_to_load_from_cache(NAME, "config.json", cache_dir=caches / "hub")
    assert theirs == str(snapshot / "config.json")


def test_revisions(caches):
    first = hf_repository(caches / "hub", NAME, COMMIT, {}, ref="v1")
    second = hf_repository(caches / "hub", NAME, OTHER, {})
    assert found(NAME) == second
    for revision in ("v1", COMMIT, COMMIT[:8]):
        assert found(f"{NAME}@{revision}") == first
    assert found(f"{NAME}@v2") is None
    assert found(f"{NAME}@{'0' * 40}") is None


@pytest.mark.parametrize("text", ["", "\n", "../../elsewhere", OTHER])
def test_a_ref_to_nothing(caches, text):
    snapshot = hf_repository(caches / "hub", NAME, COMMIT, {})
    (snapshot.parents[1] / "refs/main").write_text(text)
    assert found(NAME) is None


def test_what_is_not_there(caches):
    assert found(NAME) is None
    assert found(f"modelscope:{NAME}") is None


def test_a_snapshot_tells_where_it_is_from(caches):
    snapshot = hf_repository(caches / "hub", NAME, COMMIT, {})
    assert source_of(snapshot) == f"{NAME}@{COMMIT}"
    assert repository(snapshot) == caches / f"hub/models--{NAME.replace('/', '--')}"
    for other in (snapshot.parent, caches, Path("model"), Path("/")):
        assert source_of(other) is None
        assert repository(other) == other


@pytest.mark.parametrize("root", ["ms/models", "ms/hub/models", "ms/hub", "ms"])
@pytest.mark.parametrize("spelt", ["Org/Some-Model___5", "Org/Some-Model.5"])
def test_modelscope(caches, root, spelt):
    version = "Revision:v1.2,CreatedAt:1700000000"
    directory = modelscope_repository(caches / root, spelt, version=version)
    assert found(f"modelscope:{NAME}") == found(f"modelscope:{NAME}@v1.2") == directory
    assert found(f"modelscope:{NAME}@master") is None
    assert source_of(directory) == f"modelscope:{NAME}@v1.2 of 1700000000"
