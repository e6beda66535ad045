"""Settings of all trackers, and which packages they need."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

import pytest

from tests.unit.config.trees import parse
from verl_hpc.config.trackers import TRACKERS, MetricsConfig, PrometheusConfig, check_trackers
from verl_hpc.errors import ConfigError
from verl_hpc.tracker import Tracker

KINDS = {"prometheus": PrometheusConfig, **TRACKERS}


def settings(kind: type[Tracker]) -> object:
    """Settings of a tracker with all that it needs."""
    if kind is PrometheusConfig:
        return {"textfile": "run.prom"}
    needed = (name for name, field in kind.model_fields.items() if field.is_required())
    return dict.fromkeys(needed, "letters") if kind.model_fields else True


ALL = {name: settings(kind) for name, kind in KINDS.items()}


def without(monkeypatch: pytest.MonkeyPatch, module: str) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *of: None if name == module else real(name, *of)
    )


def test_all_trackers_are_installed_here_and_looked_for_without_an_import() -> None:
    modules = {kind.module for kind in KINDS.values()}
    program = (
        "import sys\n"
        "from verl_hpc.config.trackers import MetricsConfig, check_trackers\n"
        f"check_trackers(MetricsConfig.model_validate({ALL!r}))\n"
        f"print(*sorted({modules!r} & sys.modules.keys()))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("\n", "")


@pytest.mark.parametrize("name", ALL)
def test_a_missing_package_is_one_error_that_says_how_to_install_it(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = KINDS[name].package
    without(monkeypatch, KINDS[name].module)
    with pytest.raises(ConfigError) as caught:
        check_trackers(MetricsConfig.model_validate(ALL))
    assert str(caught.value) == (
        f"metrics.{name} needs the package {package}, which is not installed in this Python; "
        f"pip install {package} (or verl_hpc[track], which has all trackers), or leave "
        f"metrics.{name} out"
    )


def test_every_tracker_is_there():
    assert set(TRACKERS) == {"mlflow", "swanlab", "tensorboard", "wandb"}
    assert list(MetricsConfig.model_validate(ALL).trackers) == list(KINDS)
    assert MetricsConfig().trackers == {}


def test_what_is_not_wanted_may_be_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    without(monkeypatch, "wandb")
    check_trackers(MetricsConfig.model_validate({n: v for n, v in ALL.items() if n != "wandb"}))


def test_a_directory_of_the_name_is_no_package(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    """W&B leaves one where it runs, and Python would take it for a namespace package."""
    real = importlib.util.find_spec
    (tmp_path / "wandb").mkdir()
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, "wandb", raising=False)
    assert real("wandb") is not None
    with pytest.raises(ConfigError, match=r"metrics\.wandb needs the package wandb"):
        check_trackers(MetricsConfig.model_validate({"wandb": ALL["wandb"]}))


def test_a_rank_that_the_job_has_not() -> None:
    from verl_hpc.placement.layouts import place_roles

    config = parse(runtime__profile={"steps": [1], "ranks": [0, 3]})
    place_roles(config, 4)
    with pytest.raises(ConfigError, match=r"runtime.profile.ranks: has 3, and the 2 ranks"):
        place_roles(config, 2)
