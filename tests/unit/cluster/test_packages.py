"""Packages of trackers are looked for at submission, where the ranks' Python is this one."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys

import pytest

from tests.unit.cluster.requests import CPU_SITE, RUN, profile, request, write
from verl_hpc.cli.main import main
from verl_hpc.cluster.checks import check_packages
from verl_hpc.errors import ConfigError

TRACKED = {"metrics": {"wandb": {"project": "letters"}}}


@pytest.fixture
def without_wandb(monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *of: None if name == "wandb" else real(name, *of)
    )


def test_a_missing_package_is_refused(tmp_path, without_wandb) -> None:
    asked = request(tmp_path, site=profile(tmp_path, python=sys.executable), run=TRACKED)
    with pytest.raises(ConfigError, match=r"^metrics.wandb needs the package wandb, .*pip install"):
        check_packages(asked)


def test_one_that_is_there_is_no_word(tmp_path) -> None:
    asked = request(tmp_path, site=profile(tmp_path, python=sys.executable), run=TRACKED)
    assert check_packages(asked) == ""


def test_a_run_without_trackers_needs_none(tmp_path, without_wandb) -> None:
    assert check_packages(request(tmp_path)) == ""


@pytest.mark.parametrize(
    "fields",
    [
        {"python": "/opt/other/bin/python"},
        {"setup": ["module load python"]},
        {"environment": {"PATH": "/opt/bin:$PATH"}},
        {"container": {"kind": "apptainer", "image": "/images/a.sif"}},
    ],
)
def test_another_python_is_not_judged_from_here(tmp_path, without_wandb, fields) -> None:
    site = profile(tmp_path, **{"python": sys.executable} | fields)
    told = check_packages(request(tmp_path, site=site, run=TRACKED))
    assert told.startswith("metrics.wandb needs wandb: the ranks' Python is not this one")


@pytest.mark.parametrize("words", [[], ["--sweep", "seed=0,1"]])
def test_the_command_says_it_once_and_submits_nothing(
    tmp_path, monkeypatch, capsys, without_wandb, words
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "site.yaml", CPU_SITE | {"python": sys.executable})
    write(tmp_path / "run.yaml", RUN | TRACKED)
    files = ["--config", "run.yaml", "--cluster", "site.yaml", "--nodes", "1", "--time", "10"]
    assert main(["submit", *files, *words, "--dry-run"]) == 1
    shown = capsys.readouterr()
    assert shown.err.count("needs the package wandb") == 1
    assert shown.out == ""


WITHOUT_WANDB = """
import importlib.util, sys
from verl_hpc.cli.main import main
real = importlib.util.find_spec
importlib.util.find_spec = lambda name, *of: None if name == "wandb" else real(name, *of)
status = main(sys.argv[1:])
print(*{"torch", "mpi4py"} & set(sys.modules))
sys.exit(status)
"""


def test_training_ends_before_anything_is_started(tmp_path) -> None:
    file = write(tmp_path / "run.yaml", RUN | TRACKED | {"directory": str(tmp_path)})
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_WANDB, "train", "--config", file],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONHASHSEED": "0"},
    )
    assert (done.returncode, done.stdout) == (1, "\n")
    assert done.stderr.startswith("ConfigError: metrics.wandb needs the package wandb")
    assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "run").exists()
