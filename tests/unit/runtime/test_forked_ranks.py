"""What keeps `train --ranks` from starting ranks."""

import json
import re

import pytest

from tests.unit.layout.models import PUBLISHED
from verl_hpc.errors import LaunchError
from verl_hpc.runtime import forked_ranks
from verl_hpc.trainer import forked

CONFIG = ["--config", "configs/run/examples/quickstart.yaml"]


@pytest.fixture
def alone(monkeypatch):
    monkeypatch.setenv("PYTHONHASHSEED", "0")
    monkeypatch.setattr("verl_hpc.trainer.start.Signals.listen", lambda _: None)
    for name in forked_ranks._LAUNCHERS:
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("name", ["PMI_RANK", "PMIX_RANK", "SLURM_JOB_ID"])
def test_a_launcher_has_started_this_process(monkeypatch, alone, name):
    forked_ranks.check_alone()
    monkeypatch.setenv(name, "3")
    with pytest.raises(LaunchError, match=f"{name} is set: a launcher has started"):
        forked_ranks.check_alone()


NO_RANKS = [
    (["--ranks", "0"], "LaunchError: --ranks 0: choose 1 or more"),
    (["--ranks", "2", "--bootstrap", "slurm"], "LaunchError: --ranks starts ranks that find"),
]


@pytest.mark.parametrize(("words", "message"), NO_RANKS)
def test_what_makes_no_ranks_is_refused_before_anything_is_imported(refuses, alone, words, message):
    assert message in refuses("train", *words, *CONFIG)


TOO_MANY_RANKS = [
    (100_000, [], r"LaunchError: --ranks 100000: this machine can run at most \d+, .*; choose"),
    (3, ["parallel.tensor_parallel=2"], "ConfigError: --ranks 3: .* 2 does not divide the 3"),
    (2, ["placement={train: 0-3}"], "ConfigError: --ranks 2: placement.train"),
]


@pytest.mark.parametrize(("size", "more", "message"), TOO_MANY_RANKS)
def test_ranks_that_the_run_or_the_machine_cannot_have(
    monkeypatch, refuses, alone, size, more, message
):
    monkeypatch.setattr(forked, "_import_for", lambda _: pytest.fail("imports"))
    assert re.match(message, refuses("train", "--ranks", size, *CONFIG, *more))


def test_a_model_that_the_engine_cannot_serve_is_refused_before_anything_is_imported(
    monkeypatch, refuses, alone, tmp_path
):
    monkeypatch.setattr(forked, "_import_for", lambda _: pytest.fail("imports"))
    fields = next(iter(PUBLISHED.values()))[0] | {"head_dim": 8}
    (tmp_path / "config.json").write_text(json.dumps(fields))
    told = refuses("train", "--ranks", "2", *CONFIG, f"model.path={tmp_path}")
    assert "heads have 8 elements, and vLLM's attention on CPUs" in told


def test_what_bounds_the_number_of_ranks(monkeypatch):
    monkeypatch.setattr(forked_ranks.os, "sched_getaffinity", lambda _: {0, 1, 2})
    memory = 10 << 30
    monkeypatch.setattr(forked_ranks, "available_bytes", lambda: memory)
    forked_ranks.check_size(40)
    with pytest.raises(LaunchError, match=r"at most 40, one for each 256 MiB of the 10.0 GiB"):
        forked_ranks.check_size(41)
    memory = 100 << 30
    forked_ranks.check_size(48)
    with pytest.raises(LaunchError, match="at most 48, 16 on each of the 3 cores"):
        forked_ranks.check_size(49)


def test_no_mpiexec(monkeypatch, tmp_path):
    monkeypatch.setattr(forked_ranks.sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(LaunchError, match="there is no mpiexec beside"):
        forked_ranks._mpiexec()
