"""A series of sizes through `submit`, and the page about it."""

import json
import os
import subprocess
import sys

import pytest

from tests.slurm.runs import ROOT, set_pause, write_run


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_two_sizes_and_their_page(lab, model, tmp_path):
    config = write_run(tmp_path, model)
    set_pause(tmp_path, 0)
    files = ["--markdown", str(tmp_path / "page.md"), "--json", str(tmp_path / "raw.json")]
    command = [sys.executable, "-m", "benchmarks.scaling", "--config", str(config), "--weak"]
    command += ["--cluster", str(ROOT / "slurm/lab.yaml"), "--nodes", "1,2", "--time", "30"]
    command += ["--one-by-one", "--poll", "1", "--fit", "1", "--skip", "1", *files, "steps=4"]
    words = ["site.tasks_per_node=1", f"site.python={sys.executable}"]
    environ = os.environ | lab.environment
    done = subprocess.run([*command, *words], cwd=ROOT, env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "page.md").read_text()
    assert "## Weak scaling: 4 prompts a step on each rank" in page
    assert "| run_weak_nodes2 | 2 | 2 |" in page
    assert "## Prediction" in page and "| run_weak_nodes2 |" in page.split("## CPU seconds")[1]
    steps = json.loads((tmp_path / "raw.json").read_text())["steps"]
    assert [len(rows) for rows in steps.values()] == [4, 4]
