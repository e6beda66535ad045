"""benchmarks.gpu_smoke without a GPU: what it refuses, and a rehearsal of all its code."""

import json
import math
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks import gpu_smoke
from benchmarks.gpu import fp8, parity, reshard, train
from benchmarks.gpu.setting import CannotRunError, Figure, Omitted, architecture, qwen2
from tests.gpu.conftest import why_no_device

MPIEXEC = Path(sys.executable).with_name("mpiexec")

without_gpu = pytest.mark.skipif(why_no_device() is None, reason="there is a CUDA device")


def smoke(*options):
    command = [MPIEXEC, "-n", "1", sys.executable, "-m", "benchmarks.gpu_smoke", *options]
    return subprocess.run([str(word) for word in command], capture_output=True, text=True)


@without_gpu
def test_without_a_gpu_nothing_is_run():
    done = smoke()
    refusal = "gpu_smoke: torch sees no CUDA device; --cpu-rehearsal runs the script without one"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"{refusal}\n")


@without_gpu
@pytest.mark.parametrize(
    "names", [("reshard", "fp8"), pytest.param(gpu_smoke.PARTS, marks=pytest.mark.slow)]
)
def test_a_rehearsal_runs_every_part_that_a_cpu_can(tmp_path, names):
    record, table = tmp_path / "smoke.json", tmp_path / "smoke.md"
    options = ["--parts", ",".join(names), "--json", record, "--markdown", table]
    done = smoke("--cpu-rehearsal", "--rollout-engine", "hf", *options)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout in table.read_text()
    parts = {part["name"]: part for part in json.loads(record.read_text())["parts"]}
    assert tuple(parts) == names
    left_out = {name: part["not_run"] for name, part in parts.items() if part["not_run"]}
    assert left_out == {"fp8": "no CUDA device"}
    for name, part in parts.items():
        assert part["passed"], name
        assert part["figures"] or part["not_run"], name
        assert all(math.isfinite(figure["value"]) for figure in part["figures"]), name


@pytest.fixture
def run_part(monkeypatch):
    """`run_part(module, run)`: what becomes of a part whose work is `run`."""
    setting = SimpleNamespace(here=SimpleNamespace(enter=lambda _: None), on_gpu=False)

    def start(module, run):
        monkeypatch.setattr(module, "run", run)
        return gpu_smoke.run_part(module.__name__.split(".")[-1], setting)

    return start


def raising(error):
    def run(_):
        raise error

    return run


def test_a_part_that_cannot_run_says_why_and_is_no_failure(run_part):
    part = run_part(fp8, raising(CannotRunError("no FP8 here")))
    assert (part.not_run, part.broke, part.passed) == ("no FP8 here", None, True)
    part = run_part(parity, raising(ModuleNotFoundError("gone", name="megatron")))
    assert (part.not_run, part.passed) == ("module megatron is missing", True)


def test_a_part_that_breaks_is_a_failure(run_part, capsys):
    part = run_part(train, raising(RuntimeError("CUDA error: an illegal access\nmore")))
    assert (part.broke, part.passed) == ("RuntimeError: CUDA error: an illegal access", False)
    assert "illegal access" in capsys.readouterr().err


@pytest.mark.parametrize(
    "figure, holds",
    [
        (Figure("any", 5.0), True),
        (Figure("low", 1.0, at_most=1.0), True),
        (Figure("low", 1.1, at_most=1.0), False),
        (Figure("high", 2.0, at_least=3.0), False),
        (Figure("nothing", math.nan, at_most=1.0), False),
    ],
)
def test_a_figure_beyond_its_limit_fails_its_part(run_part, figure, holds):
    part = run_part(reshard, lambda _: [figure, Omitted("other", "not on this device")])
    assert part.passed is holds
    cells = gpu_smoke._cells(figure)
    assert cells[-1] == ("" if figure.name == "any" else "ok" if holds else "FAILED")


def test_operations_of_a_token():
    """Computed by hand: 1000 parameters in products, 10 tokens, 2 layers of 3 heads of 4."""
    sizes = qwen2(12, 20, 2, 3, 40) | {"head_dim": 4, "num_key_value_heads": 1}
    arch = architecture(sizes)
    assert train.flops_per_token(arch, 10) == 6 * (arch.num_parameters + 10 * 2 * 3 * 4)
    untied = architecture(sizes | {"tie_word_embeddings": False})
    assert train.flops_per_token(untied, 10) == train.flops_per_token(arch, 10)


def test_an_unknown_part_is_refused(capsys):
    with pytest.raises(SystemExit):
        gpu_smoke.main(["--parts", "parity,speed"])
    assert "no part speed" in capsys.readouterr().err
