"""What the doctor finds on disk; login_of_systems.txt has what else it says of files."""

import json
import shutil
import sys
from pathlib import Path

import pytest

from tests.unit.cluster.requests import profile, request
from tests.unit.doctor.cluster import PACKAGES
from tests.unit.programs import program
from verl_hpc.cluster.job import plan_job
from verl_hpc.doctor import files as doctor_files
from verl_hpc.doctor.files import check_inputs, check_python, check_room
from verl_hpc.doctor.quota import Quota
from verl_hpc.errors import ClusterError
from verl_hpc.layout.architecture import read_architecture
from verl_hpc.testing.tiny import make_tiny_model


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return make_tiny_model(tmp_path_factory.mktemp("tiny") / "model", "qwen2")


@pytest.fixture
def here(tmp_path, tiny):
    shutil.copytree(tiny, tmp_path / "model")
    return tmp_path


def inputs(directory, *overrides, **fields):
    asked = request(directory, *overrides, site=profile(directory, **fields))
    return {v.check: v for v in check_inputs(plan_job(asked))}


def test_a_model_that_is_whole(here):
    verdict = inputs(here)["model.path"]
    assert verdict.state == "ok"
    assert "million parameters" in verdict.found


def damage_weights(model):
    file = next(model.glob("*.safetensors"))
    file.write_bytes(file.read_bytes()[:-100])


def without_tokenizer(model):
    for file in model.glob("tokenizer*"):
        file.unlink()


@pytest.mark.parametrize(
    "harm, words",
    [
        (damage_weights, "truncated"),
        (without_tokenizer, "has no tokenizer"),
        (lambda model: (model / "config.json").unlink(), "no config.json"),
        (lambda model: next(model.glob("*.safetensors")).unlink(), "no *.safetensors"),
    ],
)
def test_a_model_that_is_not_whole(here, harm, words):
    harm(here / "model")
    verdict = inputs(here)["model.path"]
    assert verdict.state == "fails"
    assert words in verdict.found


def test_data_and_reward(here):
    data = "data.train={kind: files, paths: [a.jsonl, b.jsonl]}"
    (here / "a.jsonl").write_text("")
    asked = request(here, data, "reward.function=r.py:f")
    states = [f"{v.check} {v.state}" for v in check_inputs(plan_job(asked))]
    files = ["data.train.paths ok", "data.train.paths fails", "reward.function fails"]
    assert states == ["model.path ok", *files]
    (here / "own.py").write_text("class Own: ...")
    own = inputs(here, "data.train={kind: source, path: own.py:Own}")
    assert own["data.train.path"].state == "ok", "a class of the user's is no model"


def room(asked, *, has_config=True):
    return check_room(plan_job(asked), has_config=has_config)


def unseen(_path):
    raise ClusterError("lfs is not on PATH")


def test_what_quotas_tell_of_room(here, monkeypatch):
    few_files = [Quota("user 7", 0, None, 99_500, 10**5)]
    for read, state, words in (
        (lambda _: few_files, "fails", "99,500 of 100,000 files"),
        (unseen, "ok", "quotas are not seen: lfs is not on PATH"),
    ):
        monkeypatch.setattr(doctor_files, "read_quotas", read)
        verdict = room(request(here))
        assert verdict.state == state and words in verdict.found


def test_room(here):
    asked = request(here)
    verdict = room(asked)
    assert verdict.state == "ok"
    assert "checkpoints need about" in verdict.found
    assert "checkpoints" not in room(asked, has_config=False).found
    unseen_critic = request(here, "algorithm.advantage.name=gae", "roles.critic.path=nowhere")
    assert "need about" not in room(unseen_critic).found


@pytest.mark.parametrize(
    ("overrides", "count"),
    [
        (["steps=500", "checkpoint.every=100"], 6),
        (["steps=500", "checkpoint.every=300"], 3),
        (["steps=500"], 2),
        (["steps=null", "epochs=1", "checkpoint.every=100"], 1_000_001),
    ],
    ids=["every", "and the last", "the last", "as many as the data"],
)
def test_no_more_checkpoints_than_saves(here, monkeypatch, overrides, count):
    """verl keeps all of them by default."""
    monkeypatch.setattr(doctor_files, "_GB", 1.0)
    number = read_architecture(here / "model").num_parameters
    verdict = room(request(here, "checkpoint.keep=1000000", *overrides))
    assert f"need about {number * 14 * count:,.1f} GB" in verdict.found


@pytest.mark.parametrize(("free", "state"), [(1.5, "fails"), (2.5, "unknown"), (1e7, "ok")])
def test_room_where_the_data_say_how_many_checkpoints_there_are(here, monkeypatch, free, state):
    free *= read_architecture(here / "model").num_parameters * 14
    disk = type("", (), {"free": free})
    monkeypatch.setattr(doctor_files.shutil, "disk_usage", lambda path: disk)
    verdict = room(request(here, "steps=null", "epochs=1", "checkpoint.keep=1000000"))
    assert (verdict.state, bool(verdict.todo)) == (state, state != "ok")
    assert verdict.found.endswith("GB if there are 1,000,001")


EVERY = ("steps=99", "checkpoint.every=1", "checkpoint.keep=9", "algorithm.advantage.name=gae")
SIZES = {"vocab_size": 1_000, "intermediate_size": 1_000, "num_hidden_layers": 100}


@pytest.mark.parametrize(
    ("where", "overrides"),
    [
        ("critic", ["roles.critic.path=critic"]),
        ("step/hf_critic", ["roles.critic.path=step"]),
        ("step/hf", ["roles.critic.path=step"]),
        ("critic", ["roles.critic.path=critic", "algorithm.kl.placement=reward"]),
    ],
    ids=["model", "step's own", "step", "beside what is not trained"],
)
def test_checkpoints_have_each_trained_roles_own_model(here, where, overrides):
    tree = json.loads((here / "model/config.json").read_text())
    (here / where).mkdir(parents=True)
    (here / where / "config.json").write_text(json.dumps(tree | SIZES))
    sizes = [read_architecture(here / name).num_parameters for name in ("model", where)]
    verdict = room(request(here, *EVERY, *overrides))
    assert verdict.found.endswith(f"need about {sum(sizes) * 14 * 10 / 1e9:,.1f} GB")


def python_verdict(directory: Path, *overrides, has_config=True, **fields):
    asked = request(directory, *overrides, site=profile(directory, **fields))
    return check_python(plan_job(asked), has_config=has_config)


def test_this_python(tmp_path):
    """It has everything, as it runs these tests."""
    verdict = python_verdict(tmp_path, python=sys.executable)
    assert verdict.state == "ok", verdict
    assert all(f"{name} " in verdict.found for name in PACKAGES)


def python_with(directory, **found):
    """One that has our packages, and others or none of them."""
    answer = {"version": "3.12.1", "found": dict.fromkeys(PACKAGES, "1.0") | found}
    return str(program(directory / "python", f"echo '{json.dumps(answer)}'"))


@pytest.mark.parametrize(
    "missing, overrides, fields, words",
    [
        ("mpi4py", (), {}, "without mpi4py"),
        ("mpi4py", (), {"mpi": "none"}, ""),
        ("vllm", (), {}, "without vllm"),
        ("vllm", ("rollout.engine=hf",), {}, ""),
        ("vllm", (), {"has_config": False}, ""),
    ],
)
def test_a_python_without_our_packages(tmp_path, missing, overrides, fields, words):
    python = python_with(tmp_path, **{missing: None})
    verdict = python_verdict(tmp_path, *overrides, python=python, **fields)
    assert verdict.state == ("fails" if words else "ok")
    assert words in verdict.found


def test_packages_of_trackers_are_asked_for_too(tmp_path):
    words = ["metrics.wandb.project=letters", "metrics.mlflow={}", "metrics.tensorboard=true"]
    verdict = python_verdict(tmp_path, *words, python=sys.executable)
    assert verdict.state == "ok", verdict
    for name in ("wandb", "mlflow-skinny", "tensorboard"):
        assert f"{name} " in verdict.found
    trackers = {"mlflow-skinny": "1.0", "tensorboard": "1.0", "wandb": None}
    verdict = python_verdict(tmp_path, *words, python=python_with(tmp_path, **trackers))
    assert (verdict.state, verdict.found[-15:]) == ("fails", "; without wandb")
