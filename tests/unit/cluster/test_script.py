"""The batch script's text: byte for byte, and as shellcheck reads it."""

import dataclasses

import pytest

from tests.unit.cluster.goldens import GOLDEN, GOLDENS, HERE, SCRIPTS, golden, launch
from tests.unit.cluster.goldens import request as golden_request
from tests.unit.cluster.shellcheck import shellcheck
from verl_hpc.cluster.job import plan_job
from verl_hpc.cluster.script import render_script

AGAIN = "python -m tests.unit.cluster.goldens writes it again"


@pytest.mark.parametrize("file", GOLDENS)
def test_golden_texts(file):
    assert (GOLDEN / file).read_text() == golden(file), AGAIN


def test_no_golden_text_is_left_over():
    files = (path for path in GOLDEN.rglob("*") if path.is_file())
    assert sorted(str(path.relative_to(GOLDEN)) for path in files) == sorted(GOLDENS)


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_scripts_of_launch_are_what_their_own_command_prints(path):
    assert path.read_text() == launch(path), AGAIN


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("*.sbatch")), ids=lambda p: p.name)
def test_shellcheck_finds_nothing(path):
    assert shellcheck(path) == ""


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_scripts_of_launch_are_read_in_one_sitting(path):
    lines = path.read_text().splitlines()
    assert len(lines) < 110
    assert max(map(len, lines)) <= 100
    assert "edit" in lines[6] or "edit" in lines[5]


def test_directives_come_before_any_command():
    """Slurm stops reading directives at the first line that is neither comment nor blank."""
    for file in GOLDENS:
        lines = golden(file).splitlines()
        if file.endswith(".sbatch"):
            last = max(i for i, line in enumerate(lines) if line.startswith("#SBATCH"))
            assert all(line.startswith("#") for line in lines[: last + 1])


def test_nothing_of_the_machine_is_in_a_script(monkeypatch):
    monkeypatch.setenv("USER", "somebody")
    monkeypatch.setenv("PYTHONPATH", "/somewhere")
    assert golden("pyxis.sbatch") == (GOLDEN / "pyxis.sbatch").read_text()


def test_a_plan_depends_on_nothing_but_the_request():
    moved = dataclasses.replace(golden_request("pyxis"), directory=HERE / "x")
    assert render_script(plan_job(moved)) == render_script(plan_job(golden_request("pyxis")))
