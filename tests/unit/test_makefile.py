"""What the targets of the Makefile run."""

import os
import subprocess

import pytest

from tests.unit.cluster.requests import ROOT

NEEDS = {
    "tests/jobs": ("VERL_HPC_REQUIRE_PUSHGATEWAY=1", "pushgateway"),
    "tests/slurm": ("VERL_HPC_REQUIRE_SLURM=1", "slurm"),
    "tests/web": ("VERL_HPC_REQUIRE_BROWSER=1", "browser"),
}
"""What keeps tests of a directory from being skipped, and what is installed for them."""


@pytest.mark.parametrize("target", ["runs", "jobs", "slurm", "web", "slow"])
def test_whole_runs_are_not_skipped_for_a_missing_program(target):
    words = ["make", "--dry-run", "--always-make", "VENV=.venv", target]
    # A make that runs these tests has left its own options there.
    environment = {k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "MAKELEVEL")}
    done = subprocess.run(
        words, cwd=ROOT, capture_output=True, text=True, check=True, env=environment
    )
    asked = [line for line in done.stdout.splitlines() if "pytest" in line]
    wanted = {name: need for name, need in NEEDS.items() if any(name in line for line in asked)}
    assert wanted
    for name, (required, program) in wanted.items():
        assert all(required in line for line in asked if name in line)
        assert f"launch/install.sh .venv {program}\n" in done.stdout
