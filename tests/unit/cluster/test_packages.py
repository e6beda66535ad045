"""Packages of trackers are looked for at submission, where the ranks' Python is this one."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from typing import Any, NamedTuple

import pytest

from tests.unit.cluster.requests import CPU_SITE, RUN, profile, request, write
from verl_hpc.cli.main import main
from verl_hpc.cluster.checks import check_packages
from verl_hpc.cluster.job import plan_job
from verl_hpc.errors import ConfigError


class Tracker(NamedTuple):
    """A field of metrics, and the package that it needs."""

    name: str
    settings: Any
    module: str
    package: str

    @property
    def run(self) -> dict[str, Any]:
        """Settings of a run that it watches."""
        return {"metrics": {self.name: self.settings}}

    @property
    def needed(self) -> str:
        """How the error begins."""
        return f"metrics.{self.name} needs the package {self.package}, which is not installed"


TRACKERS = [
    Tracker("tensorboard", True, "tensorboard", "tensorboard"),
    Tracker("prometheus", {"textfile": "run.prom"}, "prometheus_client", "prometheus-client"),
    Tracker("wandb", {"project": "letters"}, "wandb", "wandb"),
    Tracker("mlflow", {}, "mlflow", "mlflow-skinny"),
    Tracker("swanlab", {"project": "letters"}, "swanlab", "swanlab"),
]
each_tracker = pytest.mark.parametrize("tracker", TRACKERS, ids=lambda tracker: tracker.name)


@pytest.fixture
def missing(tracker, monkeypatch):
    """A tracker whose package is not installed; importing it is an error."""
    real, hidden = importlib.util.find_spec, tracker.module
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *of: None if name == hidden else real(name, *of)
    )
    monkeypatch.setitem(sys.modules, hidden, None)
    return tracker


@each_tracker
def test_a_missing_package_is_refused(tmp_path, missing):
    asked = request(tmp_path, site=profile(tmp_path, python=sys.executable), run=missing.run)
    with pytest.raises(ConfigError, match=f"^{missing.needed}.*pip install {missing.package} "):
        check_packages(plan_job(asked))
    assert check_packages(plan_job(request(tmp_path))) == "", "a run without trackers needs none"


@each_tracker
def test_one_that_is_there_is_no_word(tmp_path, tracker):
    asked = request(tmp_path, site=profile(tmp_path, python=sys.executable), run=tracker.run)
    assert check_packages(plan_job(asked)) == ""


@pytest.mark.parametrize(
    "fields",
    [
        {"python": "/opt/other/bin/python"},
        {"setup": ["module load python"]},
        {"environment": {"PATH": "/opt/bin:$PATH"}},
        {"container": {"kind": "apptainer", "image": "/images/a.sif"}},
    ],
)
@each_tracker
def test_another_python_is_not_judged_from_here(tmp_path, missing, fields):
    site = profile(tmp_path, **{"python": sys.executable} | fields)
    told = check_packages(plan_job(request(tmp_path, site=site, run=missing.run)))
    needs = f"metrics.{missing.name} needs {missing.package}"
    assert told.startswith(f"{needs}: the ranks' Python is not this one")


@each_tracker
@pytest.mark.parametrize("words", [[], ["--sweep", "seed=0,1"]])
def test_the_command_says_it_once_and_submits_nothing(
    tmp_path, monkeypatch, capsys, missing, words
):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "site.yaml", CPU_SITE | {"python": sys.executable})
    write(tmp_path / "run.yaml", RUN | missing.run)
    files = ["--config", "run.yaml", "--cluster", "site.yaml", "--nodes", "1", "--time", "10"]
    assert main(["submit", *files, *words, "--dry-run"]) == 1
    shown = capsys.readouterr()
    assert (shown.err.count(missing.needed), shown.out) == (1, "")


WITHOUT = """
import importlib.util, sys
from verl_hpc.cli.main import main
_, hidden, *words = sys.argv
real = importlib.util.find_spec
importlib.util.find_spec = lambda name, *of: None if name == hidden else real(name, *of)
status = main(words)
print(*{hidden, "torch", "mpi4py"} & set(sys.modules))
sys.exit(status)
"""


@each_tracker
def test_training_ends_before_anything_is_started(tmp_path, tracker):
    file = write(tmp_path / "run.yaml", RUN | tracker.run | {"directory": str(tmp_path)})
    command = [sys.executable, "-c", WITHOUT, tracker.module, "train", "--config", file]
    environ = os.environ | {"PYTHONHASHSEED": "0"}
    done = subprocess.run(command, capture_output=True, text=True, env=environ)
    assert (done.returncode, done.stdout) == (1, "\n")
    assert done.stderr.startswith(f"ConfigError: {tracker.needed}")
    assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "run").exists()
