"""The lab itself."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from verl_hpc.errors import ClusterError
from verl_hpc.testing.slurm_lab import Lab, LabSettings, missing
from verl_hpc.testing.slurm_lab.processes import is_alive
from verl_hpc.testing.slurm_lab.root import as_root
from verl_hpc.testing.slurm_lab.settings import free_ports


def command(*words):
    program = [sys.executable, "-m", "verl_hpc.testing.slurm_lab"]
    with as_root():
        return subprocess.run([*program, *map(str, words)], capture_output=True, text=True)


def test_several_labs_side_by_side(lab, place):
    """Jobs of one do not show in the other, and its end does not touch the other."""
    up = command("up", "--nodes", 2, "--dir", place)
    assert up.returncode == 0, up.stderr
    assert up.stdout == f"export SLURM_CONF={place}/slurm.conf\n"
    assert command("env", "--dir", place).stdout == up.stdout
    assert command("up", "--dir", place).returncode == 1
    other = Lab(LabSettings(directory=place, nodes=2))
    assert sorted(other.run("srun", "-N2", "hostname").split()) == ["n0", "n1"]
    lab.run("sbatch", "--output=/dev/null", "--wrap=sleep 60", "--job-name=mine")
    assert "mine" in lab.run("squeue") and "mine" not in other.run("squeue")
    other.run("sbatch", "--output=/dev/null", "--wrap=sleep 60")
    queue = ("squeue", "--noheader", "--format=%A")
    numbers = [set(each.run(*queue).split()) for each in (lab, other)]
    assert all(numbers) and numbers[0].isdisjoint(numbers[1])
    left = [p for name in ("n0", "n1") for p in other.processes_of(name)]
    assert left
    assert command("down", "--dir", place).returncode == 0
    assert not any(map(is_alive, left))
    assert command("env", "--dir", place).returncode == 1
    assert "mine" in lab.run("squeue")
    lab.run("scancel", "--name=mine")


LOSES_ROOT = """
import os, subprocess
from verl_hpc.testing.slurm_lab.root import act_as, as_root
act_as(65534, 65533)
show = lambda: subprocess.run(["sh", "-c", "id -u; id -g; id -G"])
assert (os.geteuid(), os.getegid()) == (65534, 65533)
show()
with as_root():
    show()
show()
try:
    os.kill(1, 0)
except PermissionError:
    print("refused")
"""


def test_a_user_who_was_root_starts_programs_as_either():
    with as_root():
        done = subprocess.run([sys.executable, "-c", LOSES_ROOT], capture_output=True, text=True)
    user = ["65534", "65533", "65533"]
    assert done.stdout.split() == [*user, *"000", *user, "refused"], done.stderr


def test_jobs_are_the_submitters_on_nodes_with_another_home(slurm, tmp_path, place):
    home = tmp_path / "homes/own"
    (home / "sub").mkdir(parents=True)
    with Lab(LabSettings(directory=place, nodes=2, home=home)) as lab:
        look = f"id -u; cd {home} && ls || echo none"
        for node, found in (("n0", []), ("n1", ["none"])):
            told = lab.run("srun", f"--nodelist={node}", "sh", "-c", look)
            assert told.split() == [str(os.getuid()), *found]
    assert (home / "sub").is_dir()


def test_nodes_look_like_machines_of_their_own(lab):
    # What else is in shared memory is what killed ranks of other tests have left.
    look = "hostname; ls /dev/shm/a; getent hosts n3 >/dev/null && echo knows n3; touch /dev/shm/a"
    for name in ("n1", "n2"):
        words = lab.run("srun", f"--nodelist={name}", "sh", "-c", look)
        assert words.splitlines() == [name, "knows n3"]


def test_gpus_are_handed_out(slurm, place):
    with Lab(LabSettings(directory=place, nodes=1, gpus=4)) as gpus:
        words = ["srun", "--gpus-per-node=4", "--ntasks-per-node=4"]
        seen = gpus.run(*words, "sh", "-c", "echo $CUDA_VISIBLE_DEVICES")
        assert seen.split() == ["0,1,2,3"] * 4
        with pytest.raises(ClusterError, match="Requested node configuration is not available"):
            gpus.run("srun", "--gpus-per-node=5", "true")


def test_without_slurm_the_packages_are_named(monkeypatch, place):
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr("verl_hpc.testing.slurm_lab.programs.SYSTEM_PATH", "/nowhere")
    assert "apt-get install -y --no-install-recommends slurm-wlm munge" in (missing() or "")
    with pytest.raises(ClusterError, match="slurmctld"):
        Lab(LabSettings(directory=place)).up()


def test_a_size_or_place_that_cannot_be(place):
    with pytest.raises(ClusterError, match="at least one node"):
        LabSettings(directory=place, nodes=0)
    with pytest.raises(ClusterError, match="too long for the path of a socket"):
        LabSettings(directory=place / ("x" * 60))


def test_labs_that_start_together_choose_other_ports():
    places = [Path(f"/lab/{number}") for number in range(20)]
    assert len({free_ports(place, 5) for place in places}) > 15
