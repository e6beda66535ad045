"""The first hour on a GPU, rehearsed without one: every step that a CPU can run, then none."""

import json
import os
import subprocess
import sys

import pytest

from benchmarks.first_hour.steps import STEPS
from benchmarks.launch import REPOSITORY
from tests.gpu.conftest import why_no_device

NOT_HERE = {"te_build", "te", "te_dispatch", "tests", "vllm_tests"}


def rehearse(out):
    words = [REPOSITORY / "benchmarks" / "first_hour.sh", "--rehearse", "--out", out]
    environment = os.environ | {"PYTHON": sys.executable}
    return subprocess.run(list(map(str, words)), capture_output=True, text=True, env=environment)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.skipif(why_no_device() is None, reason="there is a CUDA device")
def test_a_rehearsal_runs_every_step_that_a_cpu_can(tmp_path):
    done = rehearse(tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    records = {one.name: json.loads((tmp_path / f"{one.name}.json").read_text()) for one in STEPS}
    assert {name for name, record in records.items() if record["state"] != "done"} == NOT_HERE
    assert all(records[name]["reason"] for name in NOT_HERE)
    assert all(record["rehearsal"] for record in records.values())
    page = (tmp_path / "first_hour.md").read_text()
    assert page.startswith("# Rehearsal of the first hour on a GPU\n\n**Rehearsal on CPU ranks")
    headings = [line for line in page.splitlines() if line.startswith("## ")]
    assert len(headings) == len(STEPS)
    assert all("(rehearsal on CPU ranks): " in line for line in headings)

    again = rehearse(tmp_path)
    assert again.returncode == 0
    for one in STEPS:
        if one.name not in NOT_HERE and not one.always:
            assert f"{one.name}: done before" in again.stdout
