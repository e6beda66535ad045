"""Who submits: `pytest tests/slurm --submitter WHO`. Without it, root in a shell of its own."""

from __future__ import annotations

import os
import pwd
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.slurm.runs import PATIENCE_S, ROOT
from verl_hpc.testing.slurm_lab import Lab
from verl_hpc.testing.slurm_lab.processes import wait_for
from verl_hpc.testing.slurm_lab.root import act_as
from verl_hpc.testing.slurm_lab.settings import LOGIN

USER, HOME, ALLOCATION = "user", "home", "allocation"
WHO = (USER, HOME, ALLOCATION)
HELP = (
    f"{USER}: nobody, who is not root; {HOME}: somebody whose HOME is another directory on the "
    f"nodes, or none; {ALLOCATION}: somebody who is inside a job"
)
_USER = "nobody"


def settle(who: str) -> Path:
    """Make this process the submitter's; returns where its tests may write."""
    place = Path(tempfile.mkdtemp(prefix="submitter-"))
    home = place / "homes/own"
    home.mkdir(parents=True)
    if who in (USER, HOME):
        os.environ["HOME"] = str(home)
    if who == USER:
        user = pwd.getpwnam(_USER)
        for path in (ROOT, Path(sys.prefix), Path(sys.base_prefix)):
            _assert_open(path.resolve())
        for path in (place, home.parent, home):
            os.chown(path, user.pw_uid, user.pw_gid)
        os.environ |= {"USER": _USER, "LOGNAME": _USER}
        act_as(user.pw_uid, user.pw_gid)
    return place / "tmp"


def _assert_open(path: Path) -> None:
    for directory in (path, *path.parents):
        if not directory.stat().st_mode & 0o001:
            raise pytest.UsageError(
                f"--submitter {USER}: {_USER} cannot enter {directory}, which {path} is in; "
                "`launch/open_python.sh COMMAND` runs a command where it can"
            )


def settings(who: str | None) -> dict[str, object]:
    """What a lab of this submitter has, as arguments of `LabSettings`."""
    if who == HOME:
        return {"home": Path(os.environ["HOME"])}
    return {"login_node": True} if who == ALLOCATION else {}


@contextmanager
def inside_a_job(lab: Lab) -> Iterator[None]:
    """Give this process, for the body, the variables of a step on the lab's login node."""
    file = lab.directory / "variables"
    shell = f"env -0 > {file}.new && mv {file}.new {file} && exec sleep infinity"
    words = [f"--partition={LOGIN}", "--nodes=1", "--ntasks=1", "--mem=500", "sh", "-c", shell]
    before, outside = dict(os.environ), lab.variables
    with subprocess.Popen(["srun", *words], env=outside) as job:
        assert wait_for(file.exists, PATIENCE_S)
        pairs = (line.partition("=")[::2] for line in file.read_text().split("\0") if line)
        os.environ |= {name: value for name, value in pairs if outside.get(name) != value}
        try:
            yield
        finally:
            os.environ.clear()
            os.environ |= before
            job.terminate()
