"""What a submission leaves behind."""

import json
import os
import py_compile
import subprocess
import sys
from importlib.util import cache_from_source

import pytest
import yaml

import verl_hpc
from tests.unit.cluster.requests import ROOT, profile, request
from tests.unit.waiting import within
from verl_hpc.cluster.profile import load_profile
from verl_hpc.cluster.run_directory import source_state, write_job
from verl_hpc.cluster.variables import rank_environment
from verl_hpc.config import load
from verl_hpc.config.load import load_config
from verl_hpc.errors import ConfigError
from verl_hpc.runs.jobs import read_jobs


def test_everything_about_a_run_is_in_its_directory(tmp_path):
    asked = request(tmp_path, "seed=5")
    job = write_job(asked, "the script", "the report")
    assert job == tmp_path / "runs/run/job"
    texts = {"job.sbatch": "the script", "dry_run.txt": "the report"}
    assert {name: (job / name).read_text() for name in texts} == texts
    assert load_config(job / "config.yaml") == asked.config
    assert load_profile(job / "site.yaml").site == asked.profile.site
    assert (job / "attempts").is_dir()


def test_a_run_directory_that_cannot_be_written(tmp_path):
    (tmp_path / "runs").write_text("in the way")
    with pytest.raises(ConfigError, match="directory = runs: cannot write"):
        write_job(request(tmp_path), "", "")


def test_ranks_run_the_copy_even_in_a_checkout_and_compile_nothing(tmp_path):
    py_compile.compile(load.__file__)
    job = write_job(request(tmp_path), "", "")
    program = "import verl_hpc.config.load as m; print(m.__file__)"
    variables = {s.name: s.value for s in rank_environment(request(tmp_path))}
    environ = {"PYTHONPATH": str(job / "code"), "PYTHONSAFEPATH": variables["PYTHONSAFEPATH"]}
    # Jobs run where they are submitted, which may be a checkout that has changed since.
    command = [sys.executable, "-v", "-c", program]
    done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True)
    copy = job / "code/verl_hpc/config/load.py"
    assert done.stdout.strip() == str(copy)
    assert f"{cache_from_source(copy)} matches {copy}\n" in done.stderr


def test_a_second_submission_replaces_the_copy_and_leaves_permissions(tmp_path):
    job = write_job(request(tmp_path), "", "")
    assert job.parent.stat().st_mode & 0o777 == 0o700
    job.parent.chmod(0o750)
    stale, ended = job / "code/verl_hpc/stale.py", job / "ended"
    stale.write_text("")
    ended.write_text("0\n")
    write_job(request(tmp_path), "", "")
    assert job.parent.stat().st_mode & 0o777 == 0o750
    assert not stale.exists()
    assert not ended.exists(), "a chain that has ended is open again"
    assert sorted(path.name for path in job.iterdir() if "code" in path.name) == ["code"]


def test_a_site_may_run_what_is_installed(tmp_path):
    job = write_job(request(tmp_path, site=profile(tmp_path, code="installed")), "", "")
    assert not (job / "code").exists()
    source = json.loads((job / "source.json").read_text())
    assert source["version"] == verl_hpc.__version__


def test_the_commit_is_known_in_a_checkout():
    state = source_state()
    assert set(state) == {"version", "commit", "changed"}
    assert state["commit"] is None or len(state["commit"]) == 40


@pytest.mark.parametrize(
    "kind", ["pipe", "directory", "{", "[1]", '{"job_id": 7}', '{"job_id": "7", "cluster": 2}']
)
def test_a_list_of_jobs_that_cannot_be_read(tmp_path, kind):
    path = tmp_path / "submitted.jsonl"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    else:
        path.write_text(kind)
    with pytest.raises(ConfigError, match=r"submitted\.jsonl: cannot be read as a list of jobs"):
        within(5, read_jobs, tmp_path)


def test_no_value_of_a_passed_variable_is_written(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hunter2")
    asked = request(tmp_path, site=profile(tmp_path, pass_environment=["HF_TOKEN"]))
    job = write_job(asked, "", "")
    files = [path for path in job.rglob("*") if path.is_file()]
    assert not [path for path in files if b"hunter2" in path.read_bytes()]
    assert yaml.safe_load((job / "site.yaml").read_text())["pass_environment"] == ["HF_TOKEN"]
