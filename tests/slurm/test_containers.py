"""A job inside a container that hides the machine's root file system."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.jobs.launch import wait_until
from verl_hpc.cluster.containers import BareConfig, BwrapConfig
from verl_hpc.cluster.mounts import Mount
from verl_hpc.testing.slurm_lab import Lab, LabSettings, missing

needs_bwrap = pytest.mark.skipif(shutil.which("bwrap") is None, reason="no bubblewrap here")
TELLS_SIGNALS = f"""\
#!{sys.executable} -I
import os, signal, sys, time

told = os.open(sys.argv[0] + ".told", os.O_WRONLY)

def say(word):
    # A second signal may come while the first is told, and print cannot be entered twice.
    os.write(told, (word + "\\n").encode())

def tell(number, frame):
    say(signal.Signals(number).name)
    if number == signal.SIGTERM:
        signal.signal(number, signal.SIG_IGN)
        sys.exit(85)

signal.signal(signal.SIGUSR2, tell)
signal.signal(signal.SIGTERM, tell)
say("listens")
time.sleep(60)
"""
NODE_SCRATCH = "/tmp"
"""What the profile says."""


@pytest.fixture
def image(tmp_path):
    """A root file system with places for what is mounted, and nothing else: like an image whose
    Python is on a shared file system."""
    root = tmp_path / "image"
    (root / "proc").mkdir(parents=True)
    for name in ("dev", "sys", NODE_SCRATCH[1:]):
        (root / name).mkdir(parents=True)
    for path in (*mounted(), tmp_path):
        (root / path.relative_to("/")).mkdir(parents=True, exist_ok=True)
    for name in ("bin", "lib", "lib64"):
        if (Path("/") / name).is_symlink():  # into /usr
            (root / name).symlink_to((Path("/") / name).readlink())
    return root


def mounted():
    """The system's programs, and this environment with the interpreter that it was made from."""
    prefixes = {Path(sys.prefix), Path(sys.base_prefix)}
    inside = {p for p in prefixes if any(p != q and p.is_relative_to(q) for q in prefixes)}
    return [Path("/usr"), Path("/etc"), *sorted(prefixes - inside)]


@needs_bwrap
def test_ranks_in_a_container_are_requeued_from_outside(run, image, undisturbed):
    """They cannot see scontrol's configuration, and need not."""
    reward = run.config.with_name("reward.py")
    look = 'Path(__file__).with_name("seen").write_text(" ".join(os.listdir("/")))'
    reward.write_text(f"import os\n{reward.read_text()}\n{look}\n")
    mounts = ",".join(f"{path}:{path}:ro" for path in mounted())
    words = {"kind": "bwrap", "image": image, "mounts": f"[{mounts}]"}
    run.submit(*(f"site.container.{name}={value}" for name, value in words.items()))
    run.wait_for_step(1)
    run.signal("USR2")
    run.finish()
    seen = reward.with_name("seen").read_text().split()
    assert sorted(seen) == sorted(path.name for path in image.iterdir())
    assert Path("/srv").exists() and "srv" not in seen
    assert (run.restarts, run.attempts) == (1, 2)
    run.assert_equals(undisturbed)


@needs_bwrap
@pytest.mark.parametrize("cgroup", [True, False], ids=["to_the_first_process", "to_all"])
def test_slurms_signals_reach_what_runs_in_a_container(slurm, tmp_path, place, cgroup):
    """Most clusters track processes by cgroup, and signal none but a rank's first."""
    if (reason := missing(cgroup)) is not None:
        pytest.skip(reason)
    rank = tmp_path / "rank"
    rank.write_text(TELLS_SIGNALS)
    rank.chmod(0o700)
    with Lab(LabSettings(directory=place, nodes=1, cgroup=cgroup)) as lab:
        for container in (BareConfig(), BwrapConfig(kind="bwrap", image="/")):
            told = signalled(lab, container, rank)
            assert list(dict.fromkeys(told)) == ["listens", "SIGUSR2", "SIGTERM"]
            if cgroup:
                assert len(told) == 3


def signalled(lab, container, rank):
    """What a rank says while its job is signalled."""
    told = rank.with_suffix(".told")
    told.write_text("")
    mounts = [Mount(str(rank.parent), str(rank.parent), False, "")]
    words = " ".join(container.prefix(mounts, names=[]))
    command = ["bash", "-c", f"IMAGE=/; exec srun --job-name=told {words} {rank}"]
    step = subprocess.Popen(command, cwd=rank.parent, env=lab.variables)
    try:
        for name in ("listens", "SIGUSR2", "SIGTERM"):
            if name != "listens":
                lab.run("scancel", f"--signal={name}", "--name=told")
            assert wait_until(lambda name=name: name in told.read_text(), step, 30)
        assert step.wait(30) == 85
    finally:
        step.kill()
    return told.read_text().split()
