"""What the doctor measures of this machine is what a plan is made with."""

import json

import pytest
import yaml

from tests.jobs.launch import finish, start, verl_hpc
from tests.unit.cluster.requests import ROOT


@pytest.fixture
def site(tmp_path):
    """A profile of this machine, which says nothing of its memory."""
    path = tmp_path / "site.yaml"
    tree = {"name": "here", "gpus_per_node": 0, "tasks_per_node": 2, "cores_per_node": 2}
    path.write_text(yaml.safe_dump(tree))
    return path


def test_a_plan_reads_what_the_doctor_measured(site, tree, tmp_path):
    words = ["-m", "verl_hpc", "doctor", "--inside", "--cluster", site, "--out", tmp_path]
    _, output = finish(start(2, words))
    (measured,) = tmp_path.glob("measured-*.json")
    assert "GiB a node" in output, output
    config = tmp_path / "run.yaml"
    config.write_text(yaml.safe_dump(tree))

    def told(*more):
        words = ["plan", "--config", config, "--cluster", site, "--nodes", "1", "--json"]
        return json.loads(verl_hpc(*words, *more, cwd=ROOT).stdout)

    bare, planned = told(), told("--measured", str(measured))
    assert {phase["limit_bytes"] for phase in bare["phases"]} == {None}
    gib = json.loads(measured.read_text())["host_memory_gib"]
    assert {phase["limit_bytes"] for phase in planned["phases"]} == {int(gib * 2**30) // 2}
    (line,) = [line for line in planned["assumptions"] if line.startswith("Measured")]
    assert f"{gib:,.2f} GiB" in line and str(measured) in line
