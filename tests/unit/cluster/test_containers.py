"""Containers: what enters them, what they are shown, and what becomes of signals and statuses.

A real container is entered where Podman can run here.
"""

import collections
import contextlib
import io
import os
import random
import shutil
import signal
import socket
import subprocess
import tarfile
import time
from pathlib import Path
from typing import get_args

import pytest
from pydantic import ValidationError

from tests.unit.cluster.requests import CONTAINERS, profile, request
from tests.unit.programs import program
from verl_hpc.cluster.containers import BwrapConfig, ContainerConfig, PodmanConfig
from verl_hpc.cluster.explain import explain
from verl_hpc.cluster.job import plan_job

RUNS = 60
PROGRAMS = ("bash", "cat", "env", "sleep", "touch")
CONF = """
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
[containers]
default_ulimits = ["nofile=1024:1024", "nproc=1024:1024"]
"""


KINDS = get_args(get_args(ContainerConfig)[0])


def prefix(directory, kind, **fields):
    """Shell words that enter the container."""
    container = CONTAINERS.get(kind, {"kind": kind, "image": "/image"}) | fields
    site = profile(directory, container=container, mpi="none", environment={"MINE": "1"})
    return " ".join(plan_job(request(directory, site=site)).prefix)


WORDS = [
    ("podman", {"gpu": "nvidia"}, " --device=nvidia.com/gpu=all "),
    ("podman", {"gpu": "amd"}, " --device=/dev/kfd --device=/dev/dri --group-add=keep-groups "),
    ("podman", {"program": "podman-hpc"}, " podman-hpc podman-hpc --rm "),
    ("podman", {"program": "podman-hpc"}, " --gpu "),
    ("docker", {"gpu": "nvidia"}, " --gpus=all "),
    ("docker", {"gpu": "amd"}, " --device=/dev/kfd --device=/dev/dri "),
    ("apptainer", {"gpu": "amd"}, " exec --rocm --bind "),
    ("apptainer", {"gpu": "none"}, " exec --bind "),
    ("shifter", {}, 'shifter "--image=$IMAGE" --module=gpu --volume=/tmp:/tmp '),
    # The site's default modules are left out, too.
    ("shifter", {"modules": []}, " --module=none "),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "fields", "words"), WORDS)
def test_words_that_enter_a_container(tmp_path, kind, fields, words):
    assert words in prefix(tmp_path, kind, **fields)


@pytest.mark.parametrize("config_class", KINDS)
def test_what_is_empty_gives_no_empty_option(config_class):
    """`--entrypoint=` is meant: it takes the image's own away."""
    fields = config_class.model_fields
    (kind,) = get_args(fields["kind"].annotation)
    empty = {"image": "/image", "mounts": [], "modules": [], "options": [], "gpu": "none"}
    config = config_class(kind=kind, **{name: empty[name] for name in empty if name in fields})
    words = [*config.prefix([], []), *(setting.text for setting in config.srun_options([], []))]
    meant = ["--entrypoint="] if kind in ("podman", "docker") else []
    assert [word for word in words if word.endswith("=")] == meant
    assert not [word for word in words if "gpu" in word or "--device" in word]


def test_nerscs_podman_has_no_option_for_gpus_of_amd():
    with pytest.raises(ValidationError, match="podman-hpc.*gpu 'amd'.*nvidia or none"):
        PodmanConfig(kind="podman", image="x", program="podman-hpc", gpu="amd")


def test_the_engine_of_cscs_mounts_what_its_file_says(tmp_path):
    site = profile(tmp_path, container=CONTAINERS["edf"])
    job = plan_job(request(tmp_path, site=site))
    assert [setting.text for setting in job.srun if setting.name == "environment"] == [
        "environment=$IMAGE"
    ]
    assert job.mounts == ()
    assert "none: ranks see" not in explain(job, ())
    assert site.site.container.shows(Path("/anything"))


def test_a_ranks_status_is_kept_while_signals_come(tmp_path):
    """The `wait` of bash loses the status of a process that ends just when a signal comes."""
    words = BwrapConfig(kind="bwrap", image="/").prefix([], [])
    wrapper = " ".join(words[: words.index("bwrap") + 1])
    inner = "echo; sleep 0.03; exit 85"
    command = ["bash", "-c", f"exec {wrapper} bash -c 'bash -c \"{inner}\"; exit $?'"]
    statuses = collections.Counter()
    for _ in range(RUNS):
        process = subprocess.Popen(
            command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        process.stdout.readline()
        time.sleep(0.025 + 0.015 * random.random())
        with contextlib.suppress(ProcessLookupError):
            for _ in range(20):
                os.kill(process.pid, signal.SIGTERM)
                time.sleep(0.001 * random.random())
        process.stdout.close()
        statuses[process.wait()] += 1
    assert statuses == {85: RUNS}


@pytest.fixture
def told(tmp_path):
    """What a stand-in of the program, which prints its words, is started with."""
    programs = tmp_path / "programs"
    for kind in ("podman", "docker"):
        program(programs / kind, 'printf "%s\\n" "$@"')

    def start(kind, **environ):
        script = f"IMAGE=verl_hpc:1\n{prefix(tmp_path, kind, gpu='none')} python -m verl_hpc"
        path = {"PATH": f"{programs}:{os.environ['PATH']}"}
        done = subprocess.run(
            ["bash", "-c", script], env=path | environ, capture_output=True, text=True, check=True
        )
        return done.stdout.splitlines()

    return start


def test_docker_runs_ranks_as_the_user(told):
    words = told("docker", SLURM_PROCID="3", HOME="/root")
    assert (words[0], words[-4:]) == ("run", ["verl_hpc:1", "python", "-m", "verl_hpc"])
    groups = {f"--group-add={group}" for group in os.getgroups() or [os.getgid()]}
    user = f"--user={os.getuid()}:{os.getgid()}"
    assert {user, "--env=SLURM_PROCID", "--env=HOME=/tmp", *groups} <= set(words)
    assert "--env=HOME" not in words


def test_podman_gets_the_variables_of_slurm_and_pmi(told):
    words = told("podman", SLURM_PROCID="3", PMI_RANK="3", CUDA_VISIBLE_DEVICES="0,1", OTHER="x")
    assert {"--env=SLURM_PROCID", "--env=PMI_RANK", "--env=CUDA_VISIBLE_DEVICES"} <= set(words)
    assert not [word for word in words if "OTHER" in word or word.startswith("--user")]


# A real container


def archive():
    """A root file system of bash and some programs of this machine."""
    files = {Path(shutil.which(name)) for name in PROGRAMS}
    for file in list(files):
        done = subprocess.run(["ldd", file], capture_output=True, text=True, check=True)
        words = done.stdout.split()
        files |= {Path(word) for word in words if word.startswith("/")}
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w", dereference=True) as tar:
        for file in sorted(files):
            tar.add(file, str(file))
    return data.getvalue()


@pytest.fixture(scope="module")
def podman(tmp_path_factory):
    """Variables with which Podman runs the image verl_hpc:1 here."""
    if shutil.which("podman") is None:
        pytest.skip("podman is not installed")
    directory = tmp_path_factory.mktemp("podman")
    (directory / "containers.conf").write_text(CONF if shutil.which("runc") else "")
    roots = f'runroot = "{directory}/run"\ngraphroot = "{directory}/graph"\n'
    (directory / "storage.conf").write_text(f'[storage]\ndriver = "vfs"\n{roots}')
    files = {"CONTAINERS_CONF": "containers.conf", "CONTAINERS_STORAGE_CONF": "storage.conf"}
    environ = os.environ | {name: str(directory / file) for name, file in files.items()}
    steps = (["import", "-", "verl_hpc:1"], archive()), (["run", "verl_hpc:1", "env"], None)
    for words, given in steps:
        done = subprocess.run(["podman", *words], input=given, env=environ, capture_output=True)
        if done.returncode:
            pytest.skip(f"podman cannot run here: {done.stderr.decode().splitlines()[-1]}")
    yield environ
    subprocess.run(["podman", "system", "reset", "--force"], env=environ, capture_output=True)


@pytest.fixture
def inside(podman, tmp_path):
    """A command started as a rank's is, in a real container."""
    seen = tmp_path / "seen"
    seen.mkdir()
    words = prefix(tmp_path, "podman", gpu="none", mounts=[f"{seen}:/in:ro"])

    def start(command, fds=(), **environ):
        ours = "IMAGE=verl_hpc:1\nexport VERL_HPC_ATTEMPT=/a MINE=1\n"
        script = ["bash", "-c", f'{ours}exec {words} bash -c "$COMMAND"']
        given = {"env": podman | environ | {"COMMAND": command}, "cwd": tmp_path, "pass_fds": fds}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        return subprocess.Popen(script, **given, **pipes)

    return start


@pytest.mark.slow
def test_a_container_sees_its_mounts_and_variables(inside, tmp_path):
    (tmp_path / "seen/file").write_text("words")
    show = 'echo " $SLURM_PROCID $MINE $VERL_HPC_ATTEMPT [$OTHER] $PWD"'
    command = f"cat /in/file; {show}; touch here; touch /in/x || exit 7"
    rank = inside(command, SLURM_PROCID="5", OTHER="x")
    out, _ = rank.communicate(timeout=60)
    assert out.splitlines()[0] == f"words 5 1 /a [] {tmp_path}"
    assert rank.returncode == 7
    assert (tmp_path / "here").stat().st_uid == os.getuid()


@pytest.mark.slow
def test_pmis_descriptor_reaches_a_container(inside):
    ours, theirs = socket.socketpair()
    with ours, theirs:
        fd = theirs.fileno()
        script = 'echo hello >&"$PMI_FD"; read -r -u "$PMI_FD" word; echo "$word"'
        rank = inside(script, [fd], PMI_FD=str(fd))
        theirs.close()
        ours.settimeout(60)
        assert ours.recv(100) == b"hello\n"
        ours.sendall(b"answer\n")
        out, _ = rank.communicate(timeout=60)
    assert (out, rank.returncode) == ("answer\n", 0)


@pytest.mark.slow
def test_slurms_signals_reach_a_container(inside):
    rank = inside('trap "echo saved; exit 85" USR2; echo ready; while :; do sleep 0.05; done')
    assert rank.stdout.readline() == "ready\n"
    time.sleep(0.1)
    rank.send_signal(signal.SIGUSR2)
    out, _ = rank.communicate(timeout=60)
    assert (out, rank.returncode) == ("saved\n", 85)
