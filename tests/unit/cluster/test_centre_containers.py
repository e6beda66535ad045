"""Shifter and the container engine of CSCS: what enters them, and what they are shown."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from tests.unit.cluster.requests import CONTAINERS, profile, request
from verl_hpc.cluster.containers import PodmanConfig, ShifterConfig
from verl_hpc.cluster.explain import explain
from verl_hpc.cluster.job import plan_job
from verl_hpc.cluster.script import render_step


def plan(directory, kind):
    asked = request(directory, site=profile(directory, container=CONTAINERS[kind], mpi="none"))
    return asked, plan_job(asked)


def test_shifter(tmp_path):
    _, job = plan(tmp_path, "shifter")
    words = render_step(job).replace("\\\n   ", "")
    enters = '--workdir=$PWD" python -m verl_hpc train'
    for part in ('shifter  "--image=$IMAGE"', "--module=gpu", "--volume=/data:/in:ro", enters):
        assert part in words


def test_shifter_without_modules_leaves_out_the_sites_default_ones_too():
    words = ShifterConfig(kind="shifter", image="x", modules=[]).prefix([], [])
    assert [word for word in words if word.startswith("--module")] == ["--module=none"]


def test_the_engine_of_cscs_mounts_what_its_file_says(tmp_path):
    asked, job = plan(tmp_path, "edf")
    assert '--environment="$IMAGE"' in render_step(job)
    assert job.mounts == ()
    assert "none: ranks see" not in explain(job, ())
    assert asked.profile.site.container.shows(Path("/anything"))


def test_nerscs_podman_with_gpus_of_nvidia_and_without_any():
    words = PodmanConfig(kind="podman", image="x", program="podman-hpc").prefix([], [])
    assert words[3:5] == ["podman-hpc", "podman-hpc"]
    assert "--gpu" in words
    assert not [word for word in words if word.startswith("--device")]
    words = PodmanConfig(kind="podman", image="x", program="podman-hpc", gpu="none").prefix([], [])
    assert "--gpu" not in words


def test_nerscs_podman_has_no_option_for_gpus_of_amd():
    with pytest.raises(ValidationError, match="podman-hpc.*gpu 'amd'.*nvidia or none"):
        PodmanConfig(kind="podman", image="x", program="podman-hpc", gpu="amd")
