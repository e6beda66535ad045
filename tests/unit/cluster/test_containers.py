"""What the command around a container's ranks does with signals and statuses."""

import collections
import contextlib
import os
import random
import signal
import subprocess
import time

import pytest
from pydantic import TypeAdapter

from tests.unit.cluster.requests import CONTAINERS
from verl_hpc.cluster.containers import BwrapConfig, ContainerConfig

RUNS = 60


def wrapper():
    words = BwrapConfig(kind="bwrap", image="/").prefix([], [])
    return " ".join(words[: words.index("bwrap") + 1])


def test_a_ranks_status_is_kept_while_signals_come(tmp_path):
    """The `wait` of bash loses the status of a process that ends just when a signal comes."""
    inner = "echo; sleep 0.03; exit 85"
    statuses = collections.Counter()
    for _ in range(RUNS):
        command = ["bash", "-c", f"exec {wrapper()} bash -c 'bash -c \"{inner}\"; exit $?'"]
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


@pytest.mark.parametrize("kind", CONTAINERS)
def test_what_is_empty_gives_no_empty_option(kind):
    """`--entrypoint=` is meant: it takes the image's own away."""
    empty = {"mounts": [], "modules": [], "options": [], "gpu": "none"}
    config = TypeAdapter(ContainerConfig).validate_python(CONTAINERS[kind])
    fields = type(config).model_fields
    config = config.model_copy(update={name: empty[name] for name in empty if name in fields})
    words = [*config.prefix([], []), *(setting.text for setting in config.srun_options([], []))]
    meant = ["--entrypoint="] if kind in ("podman", "docker") else []
    assert [word for word in words if word.endswith("=")] == meant
