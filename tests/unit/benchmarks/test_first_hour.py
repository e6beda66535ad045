"""The steps of the first hour on a GPU: what resumes, what is told, and what has to be carried."""

import json
import signal
import sys
from dataclasses import replace
from importlib.metadata import requires

import pytest
from packaging.requirements import Requirement

from benchmarks.first_hour import steps, wheels
from benchmarks.first_hour.__main__ import main
from benchmarks.first_hour.calibrate import site
from benchmarks.first_hour.kill_resume import STEPS as STEPS_OF_A_RUN
from benchmarks.first_hour.kill_resume import compared
from benchmarks.first_hour.runner import Runner
from benchmarks.first_hour.step import Here, Step
from benchmarks.gpu.dispatch import covered


def step(name, program, limit_s=60.0, **more):
    """A step that runs a Python program, in which OUT is the directory of records."""
    text = f"from pathlib import Path; import sys, time\nOUT = Path(sys.argv[1])\n{program}"
    words = [sys.executable, "-c", text]
    return Step(name, f"that {name} works", limit_s, lambda here: [*words, str(here.out)], **more)


@pytest.fixture(autouse=True)
def _no_handler(monkeypatch):
    """Handlers of signals would stay, for other tests."""
    monkeypatch.setattr(signal, "signal", lambda *_: None)


COUNT = "file = OUT / '{}.count'; file.write_text(file.read_text() + 'x' if file.exists() else 'x')"
GOOD = step("good", COUNT.format("good"))
FRAGILE = step("fragile", COUNT.format("fragile") + "\nsys.exit(not (OUT / 'mended').exists())")
SLOW = step("slow", "while not (OUT / 'mended').exists(): time.sleep(0.01)", limit_s=1.0)
LACKING = step("lacking", "", lacks=lambda _: "no such kernel here")


def states(out):
    return {
        name: json.loads((out / f"{name}.json").read_text())["state"]
        for name in ("good", "fragile", "slow", "lacking")
    }


def test_what_failed_is_run_again_and_what_is_done_is_not(tmp_path):
    """A step that fails or takes too long keeps no other from running."""
    runner = Runner([GOOD, FRAGILE, SLOW, LACKING], tmp_path, rehearse=True)
    names = [one.name for one in runner.steps]
    assert runner.run(names) == 1
    first = {"good": "done", "fragile": "failed", "slow": "out of time", "lacking": "not run"}
    assert states(tmp_path) == first
    text = (tmp_path / "first_hour.md").read_text()
    assert "no figure here says anything about a GPU" in text
    assert "## fragile (rehearsal on CPU ranks): failed" in text
    assert "Not run: no such kernel here." in text

    (tmp_path / "mended").touch()
    runner.steps = [GOOD, FRAGILE, replace(SLOW, limit_s=60.0), LACKING]
    assert runner.run(names) == 0
    assert states(tmp_path) == first | {"fragile": "done", "slow": "done"}
    assert (tmp_path / "good.count").read_text() == "x"
    assert (tmp_path / "fragile.count").read_text() == "xx"
    assert runner.run(["good"], again=["good"]) == 0
    assert (tmp_path / "good.count").read_text() == "xx"


def test_a_machine_that_is_taken_away_leaves_the_steps_so_far(tmp_path):
    """While a step runs the page has those before it; one that never ended is run again."""
    taken = tmp_path / "taken"
    program = "import shutil; shutil.copytree(OUT, OUT.with_name('taken'))"
    out = tmp_path / "out"
    runner = Runner([GOOD, step("last", program)], out, rehearse=False)
    assert runner.run(["good", "last"]) == 0
    text = (taken / "first_hour.md").read_text()
    assert "| `good`: that good works | done |" in text
    assert "| `last`: that last works | running |" in text
    assert json.loads((taken / "good.json").read_text())["state"] == "done"

    (taken / "good.count").unlink()
    runner = Runner([GOOD, step("last", COUNT.format("last"))], taken, rehearse=False)
    assert runner.run(["good", "last"]) == 0
    assert (taken / "last.count").exists() and not (taken / "good.count").exists()


def test_a_step_in_the_background_ends_before_what_needs_it(tmp_path):
    build = step(
        "build",
        "while not (OUT / 'beside').exists(): time.sleep(0.01)\n"
        "time.sleep(2); (OUT / 'built').touch()",  # what does not wait is over by then
        in_background=True,
    )
    beside = step("beside", "(OUT / 'beside').touch()")
    needs = step("needs", "sys.exit(not (OUT / 'built').exists())", after="build")
    runner = Runner([build, beside, needs], tmp_path, rehearse=False)
    assert runner.run(["build", "beside", "needs"]) == 0


def test_what_a_step_has_measured_is_on_the_page_and_in_its_record(tmp_path):
    program = "import json; (OUT / 'one.result.json').write_text(json.dumps({'speed': 7}))\n"
    program += "(OUT / 'one.result.md').write_text('| 7 |')"
    assert Runner([step("one", program)], tmp_path, rehearse=False).run(["one"]) == 0
    assert json.loads((tmp_path / "one.json").read_text())["result"] == {"speed": 7}
    text = (tmp_path / "first_hour.md").read_text()
    assert "| 7 |" in text and "rehearsal" not in text


def test_a_rehearsal_and_gpu_steps_do_not_mix(tmp_path):
    assert Runner([GOOD], tmp_path, rehearse=True).run(["good"]) == 0
    with pytest.raises(SystemExit, match="holds a rehearsal"):
        Runner([GOOD], tmp_path, rehearse=False).run(["good"])


def test_without_a_gpu_nothing_is_measured(tmp_path, capsys, monkeypatch):
    """The real table: each step says why it is not run, and rehearsed ones have no GPU."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert main(["--out", str(tmp_path), "--only", "environment,layers,te_build,calibrate"]) == 2
    out = capsys.readouterr().out
    assert "layers: not run: no CUDA device (torch 2." in out
    assert "calibrate: not run: no CUDA device" in out
    facts = json.loads((tmp_path / "environment.result.json").read_text())
    assert facts["device"] is None and facts["packages"]["megatron-core"] == "0.16.1"


FACTS = {"device": "NVIDIA H100 80GB HBM3", "packages": {"pytest": "9", "pytest-timeout": "2"}}


def lacking(tmp_path, **facts):
    """Reasons of the steps that a machine cannot run."""
    here = Here(tmp_path, rehearse=False, facts=FACTS | facts)
    reasons = {one.name: one.lacks(here) for one in steps.STEPS}
    return {name: reason for name, reason in reasons.items() if reason}


def test_what_a_borrowed_machine_can_run(tmp_path):
    """Without vLLM and nvcc PyTorch's layers remain, with nvcc also Transformer Engine's."""
    bare = lacking(tmp_path)
    assert set(bare) == {
        *("te_build", "te", "te_dispatch", "vllm_rollout", "vllm_tests", "vllm_run")
    }
    needs = "build Transformer Engine: needs nvcc, which is not on this machine's PATH"
    assert bare["te_build"].startswith(needs)
    assert "te_build" not in lacking(tmp_path, nvcc="/usr/local/cuda/bin/nvcc")
    whole = lacking(tmp_path, transformer_engine=True, packages=FACTS["packages"] | {"vllm": "0"})
    assert set(whole) == {"te_build"}
    (tmp_path / "te").mkdir()
    (tmp_path / "te" / "imports").touch()
    assert "te" not in lacking(tmp_path)
    assert "tests" in lacking(tmp_path, packages={})


def test_steps_without_transformer_engine_do_not_see_it(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "/mine")
    by_name = {one.name: one for one in steps.STEPS}
    here = Here(tmp_path, rehearse=False, facts=FACTS)
    path = by_name["layers"].variables(here)["PYTHONPATH"]
    assert path == f"{tmp_path}/without_te:/mine"
    hiding = tmp_path / "without_te" / "transformer_engine" / "__init__.py"
    assert hiding.read_text().startswith("raise ModuleNotFoundError")
    assert by_name["te"].variables(here) == {}
    (tmp_path / "te").mkdir()
    (tmp_path / "te" / "imports").touch()
    assert by_name["te"].variables(here) == {"PYTHONPATH": f"{tmp_path}/te:/mine"}


def needed_here(line):
    """The package of a requirement, if this Python has it."""
    needed = Requirement(line)
    applies = needed.marker is None or needed.marker.evaluate({"extra": ""})
    return needed.name if applies else None


def closure(names):
    """Packages that these need, themselves included."""
    seen, waiting = set(), list(names)
    while waiting:
        name = waiting.pop().lower().replace("_", "-")
        if name not in seen:
            seen.add(name)
            waiting += filter(None, map(needed_here, requires(name) or ()))
    return seen


def test_what_is_carried_is_what_the_steps_import_and_that_needs():
    of_torch = closure(["torch"])
    assert closure(wheels.ROOTS) - of_torch | {"torch", "mpich"} == set(wheels.NEEDED)
    assert set(wheels.NEEDED) <= set(wheels.pins())
    few, everything = wheels.to_carry("few"), wheels.to_carry("all")
    assert not any(line.startswith(("torch==", "vllm==")) for line in few)
    assert "transformer_engine_torch==2.11.0" in few
    assert set(few) <= {line.lower().replace("_", "-") for line in everything} | set(everything)
    assert any(line.startswith("vllm==") for line in everything)


def test_a_package_that_is_missing_is_named_with_what_pip_says(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(wheels, "NEEDED", ("rich", "megatron-core"))
    monkeypatch.setattr(wheels, "pins", lambda: {"rich": "1", "megatron-core": "0.0.1"})
    record = tmp_path / "wheels.json"
    assert wheels.main(["--install", str(tmp_path), "--json", str(record)]) == 1
    assert json.loads(record.read_text())["missing"] == ["megatron-core"]
    out = capsys.readouterr().out
    assert "megatron-core: ERROR: No matching distribution found for megatron-core==0.0.1" in out
    assert "missing: megatron-core==0.0.1; carry them in a directory" in out


def rows(numbers, **values):
    return [{"step": number, "time": number, "actor/loss": 1.0} | values for number in numbers]


def verdicts(figures):
    return {figure.name: figure.holds for figure in figures}


def test_repeated_steps_are_equal_or_the_run_has_failed():
    whole = rows(range(1, STEPS_OF_A_RUN + 1))
    assert all(verdicts(compared(rows(range(1, 6)), whole, 3, 0.0)).values())
    other = rows(range(1, 6), **{"actor/loss": 1.01})
    assert verdicts(compared(other, whole, 3, 0.0)) == {
        "steps of the first start": True,
        "resumed after step": True,
        "steps that were done twice": True,
        "steps missing or twice in the end": True,
        "first repeated step, largest relative difference": False,
        "all repeated steps, largest relative difference": False,
    }
    assert all(verdicts(compared(other, whole, 3, 0.05)).values())
    failed = verdicts(compared(rows(range(1, 4)), whole[:-1], 3, 0.05))
    assert not failed["steps that were done twice"]
    assert not failed["steps missing or twice in the end"]


@pytest.mark.parametrize(
    ("device", "gib", "gpu"),
    [
        ("NVIDIA H100 80GB HBM3", 79.2, "H100-80"),
        ("NVIDIA H100 NVL", 93.1, "H100-94"),
        ("NVIDIA H200", 139.8, "H200"),
        ("NVIDIA GH200 480GB", 94.9, "H100-96"),
    ],
)
def test_the_planner_knows_the_device(device, gib, gpu):
    profile = site({"cores": 16, "device": device, "device_memory_gib": gib})
    assert profile["gpu"] == gpu and profile["gpus_per_node"] == 1
    with pytest.raises(SystemExit, match="is no kind of"):
        site({"cores": 16, "device": "NVIDIA Z1", "device_memory_gib": gib})


def test_time_that_spans_cover_is_counted_once():
    assert covered([(5.0, 6.0), (0.0, 2.0), (1.0, 3.0), (1.5, 2.5)]) == 4.0
    assert covered([]) == 0.0
