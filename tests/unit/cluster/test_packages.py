"""Packages of trackers are looked for at submission, where the ranks' Python is this one.

`tests/unit/trackers/test_trackers.py` has the package of each tracker.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys

import pytest

from tests.unit.cluster.requests import CPU_SITE, RUN, profile, request, write
from verl_hpc.cluster.checks import check_packages
from verl_hpc.cluster.job import plan_job
from verl_hpc.errors import ConfigError, DataError

WATCHED = {"metrics": {"mlflow": {}}}
NEEDED = "metrics.mlflow needs the package mlflow-skinny, which is not installed"


def check(directory, run=WATCHED, **fields):
    site = profile(directory, **{"python": sys.executable} | fields)
    return check_packages(plan_job(request(directory, site=site, run=run)))


@pytest.fixture
def missing(monkeypatch):
    """The package is not installed, and importing it is an error."""
    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *of: None if name == "mlflow" else real(name, *of)
    )
    monkeypatch.setitem(sys.modules, "mlflow", None)


def test_a_missing_package_is_refused(tmp_path, request):
    assert check(tmp_path) == "", "one that is there is no word"
    request.getfixturevalue("missing")
    with pytest.raises(ConfigError, match=f"^{NEEDED}.*pip install mlflow-skinny "):
        check(tmp_path)
    assert check(tmp_path, run={}) == "", "a run without trackers needs none"


def test_a_store_without_its_package_is_refused_or_told(tmp_path, monkeypatch):
    run = {"data": {"train": {"kind": "files", "paths": ["s3://bucket/rows"]}}}
    assert check(tmp_path, run=run) == ""
    monkeypatch.setitem(sys.modules, "s3fs", None)
    monkeypatch.delitem(sys.modules["fsspec.registry"]._registry, "s3")
    with pytest.raises(DataError, match="^s3://bucket/rows: .*needs the package s3fs"):
        check(tmp_path, run=run)
    told = "data.train.paths = s3://bucket/rows needs a package for its store: the ranks' Python"
    assert check(tmp_path, run=run, setup=["module load python"]).startswith(told)


@pytest.mark.parametrize(
    "fields",
    [
        {"python": "/opt/other/bin/python"},
        {"setup": ["module load python"]},
        {"environment": {"PATH": "/opt/bin:$PATH"}},
        {"container": {"kind": "apptainer", "image": "/images/a.sif"}},
    ],
)
def test_another_python_is_not_judged_from_here(tmp_path, missing, fields):
    told = "metrics.mlflow needs mlflow-skinny: the ranks' Python is not this one"
    assert check(tmp_path, **fields).startswith(told)


@pytest.mark.parametrize("words", [[], ["--sweep", "seed=0,1"]])
def test_the_command_says_it_once_and_submits_nothing(here, called, missing, words):
    write(here / "site.yaml", CPU_SITE | {"python": sys.executable})
    write(here / "run.yaml", RUN | WATCHED)
    files = ["--config", "run.yaml", "--cluster", "site.yaml", "--nodes", "1", "--time", "10"]
    status, out, err = called("submit", *files, *words, "--dry-run")
    assert (status, out, err.count(NEEDED)) == (1, "", 1)


WITHOUT = """
import importlib.util, sys
from verl_hpc.cli.main import main
real = importlib.util.find_spec
importlib.util.find_spec = lambda name, *of: None if name == "mlflow" else real(name, *of)
status = main(sys.argv[1:])
print(*{"mlflow", "torch", "mpi4py"} & set(sys.modules))
sys.exit(status)
"""


def test_training_ends_before_anything_is_started(tmp_path):
    file = write(tmp_path / "run.yaml", RUN | WATCHED | {"directory": str(tmp_path)})
    command = [sys.executable, "-c", WITHOUT, "train", "--config", file]
    environ = os.environ | {"PYTHONHASHSEED": "0"}
    done = subprocess.run(command, capture_output=True, text=True, env=environ)
    assert (done.returncode, done.stdout) == (1, "\n")
    assert done.stderr.startswith(f"ConfigError: {NEEDED}")
    assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "run").exists()
