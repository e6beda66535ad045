"""Fetching, from a stand-in of the Hub on this machine."""

import json
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
from huggingface_hub import scan_cache_dir
from safetensors.torch import save

from tests.unit.sources.hub_stand_in import COMMIT, Hub, serving
from verl_hpc.errors import ModelError
from verl_hpc.sources.cache import parse_name
from verl_hpc.sources.fetch import fetch, wanted_files

NAME = "Org/Small"
TOKEN = "hf_" + "Zq7" * 11
SHARDS = {
    f"model-{number}-of-2.safetensors": save({f"t{number}": torch.full((64,), float(number))})
    for number in (1, 2)
}
INDEX = {"weight_map": {f"t{number}": name for number, name in enumerate(SHARDS, 1)}}
NEEDED = {
    "config.json": b'{"model_type": "llama"}',
    "tokenizer.json": b"{}",
    "model.safetensors.index.json": json.dumps(INDEX).encode(),
    **SHARDS,
}
OTHERS = {
    "consolidated.safetensors": b"the same weights once more",
    "pytorch_model.bin": b"and again",
    "original/params.json": b"{}",
    "README.md": b"",
}


@pytest.fixture
def hub():
    with serving(Hub(NAME, dict(NEEDED | OTHERS))) as found:
        yield found


@pytest.fixture
def run(hub, tmp_path):
    """`fetch` in a process of its own, whose hub is the stand-in."""

    def started(*names, **environ):
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("HF_", "TRANSFORMERS_"))}
        settings = {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "hf"), "HOME": str(tmp_path)}
        command = [sys.executable, "-m", "verl_hpc", "fetch", *names]
        variables = kept | settings | environ
        return subprocess.run(command, env=variables, capture_output=True, text=True)

    return started


def names_of(hub):
    return sorted(name for name, _ in hub.served)


def test_what_a_run_reads_is_fetched_once(hub, run, tmp_path):
    done = run(NAME)
    assert done.returncode == 0, done.stderr
    directory = tmp_path / f"hf/hub/models--Org--Small/snapshots/{COMMIT}"
    size = sum(map(len, NEEDED.values())) / 1e6
    assert done.stdout == f"{NAME}@{COMMIT}: {size:,.2f} MB, 2 tensors, whole\n  {directory}\n"
    assert {path.name: path.read_bytes() for path in directory.iterdir()} == NEEDED
    assert names_of(hub) == sorted(NEEDED)
    (scanned,) = scan_cache_dir(tmp_path / "hf/hub").repos
    assert [(r.commit_hash, r.refs) for r in scanned.revisions] == [(COMMIT, {"main"})]
    hub.served.clear()
    assert run(NAME).stdout == done.stdout
    assert hub.served == []


def test_an_interrupted_download_goes_on(hub, run):
    lost = "model-2-of-2.safetensors"
    hub.missing.add(lost)
    failed = run(NAME)
    assert failed.returncode == 1 and "Traceback" not in failed.stderr
    assert "run the same command again to continue" in failed.stderr
    hub.missing.clear()
    hub.served.clear()
    hub.breaks[lost] = 10  # and once more the connection is lost
    done = run(NAME)
    assert done.returncode == 0, done.stderr
    assert set(names_of(hub)) == {lost}


def test_a_shard_that_is_not_what_its_header_says(hub, run):
    lost = "model-2-of-2.safetensors"
    hub.commits[COMMIT][lost] = SHARDS[lost][:-4]
    failed = run(NAME)
    assert failed.returncode == 1
    assert f"{lost}: " in failed.stderr
    assert "download it again" in failed.stderr


def test_a_token_is_sent_and_written_nowhere(hub, run, tmp_path):
    hub.token = TOKEN
    refused = run(NAME)
    assert refused.returncode == 1
    assert "accept the terms on the model's page, and export HF_TOKEN" in refused.stderr
    done = run(NAME, HF_TOKEN=TOKEN)
    assert done.returncode == 0, done.stderr
    wrong = run(f"{NAME}@no-such-branch", HF_TOKEN=TOKEN)
    assert "no such branch, tag or commit" in wrong.stderr
    told = done.stdout + done.stderr + wrong.stdout + wrong.stderr
    assert TOKEN not in told
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) > len(NEEDED)
    assert not [path for path in files if TOKEN.encode() in path.read_bytes()]


def test_what_cannot_be_fetched(hub, run):
    assert "no such repository, or it is private" in run("Org/Nothing").stderr
    assert "HF_HUB_OFFLINE or TRANSFORMERS_OFFLINE is set" in run(NAME, HF_HUB_OFFLINE="1").stderr
    assert "cannot be written into /dev/null/hub" in run(NAME, HF_HOME="/dev/null").stderr
    nobody = run(NAME, HF_ENDPOINT="http://127.0.0.1:9").stderr
    assert "http://127.0.0.1:9 does not give it" in nobody
    assert "Traceback" not in nobody


def wanted(*names):
    return wanted_files(parse_name(NAME), names)


def test_files_that_are_wanted():
    for files, others in (
        (["a.json", "model.safetensors"], ["consolidated.safetensors", "x.bin"]),
        (["chat_template.jinja", "tokenizer.json"], ["sub/tokenizer.json"]),
        (["adapter_config.json", "adapter_model.safetensors"], []),
    ):
        assert wanted(*reversed(files), *others) == files


@pytest.mark.parametrize(
    ("names", "told"),
    [
        (["config.json", "pytorch_model.bin"], "no safetensors in it, only pytorch_model.bin"),
        (["README.md"], "no file in it that a run would read"),
    ],
)
def test_repositories_that_no_run_can_read(names, told):
    with pytest.raises(ModelError, match=told):
        wanted(*names)


def test_modelscope_without_its_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "modelscope", None)
    with pytest.raises(ModelError, match="needs the package modelscope, which is not installed"):
        fetch("modelscope:Org/Small")


def test_modelscope_is_asked_for_what_a_run_reads(monkeypatch, tmp_path, small_llama):
    """The package is not among ours: this holds to its signature, and says no more."""
    asked = []

    def snapshot_download(model_id, revision=None, *, allow_file_pattern=None):
        asked.append((model_id, revision, allow_file_pattern))
        return str(small_llama)

    package = SimpleNamespace(snapshot_download=snapshot_download)
    monkeypatch.setitem(sys.modules, "modelscope", package)
    monkeypatch.setenv("MODELSCOPE_CACHE", str(small_llama.parent))
    fetched = fetch("modelscope:Org/Small@v1")
    assert fetched.directory == small_llama
    assert fetched.num_tensors == 1
    ((name, revision, patterns),) = asked
    assert (name, revision) == ("Org/Small", "v1")
    assert "*.safetensors" in patterns
    assert "*.bin" not in patterns
    monkeypatch.setenv("MODELSCOPE_CACHE", str(tmp_path))
    with pytest.raises(ModelError, match="where runs do not look"):
        fetch("modelscope:Org/Small")
