"""Programs that a lab needs, and how it runs them."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from verl_hpc.errors import ClusterError
from verl_hpc.testing.slurm_lab.root import as_root, may_be_root
from verl_hpc.testing.slurm_lab.settings import FREEZER, LabSettings

INSTALL = "apt-get install -y --no-install-recommends slurm-wlm munge"
SYSTEM_PATH = "/usr/sbin:/sbin"
"""Directories of daemons that are not on PATH."""
_PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "unshare")
INSTALL_ACCOUNTING = (
    "apt-get install -y --no-install-recommends slurmdbd slurm-wlm-mysql-plugin "
    "mariadb-server-core mariadb-client-core"
)
_ACCOUNTING_PROGRAMS = ("slurmdbd", "mariadbd", "mariadb-install-db", "mariadb", "sacctmgr")
_TIMEOUT_S = 60.0


def missing(cgroup: bool = False, accounts: bool = False) -> str | None:
    """Return why no lab can run here, and what to do about it; None if one can.

    Args:
        cgroup: `LabSettings.cgroup`.
        accounts: `LabSettings.accounting`.
    """
    absent = [name for name in _PROGRAMS if _which(name) is None]
    if absent:
        return f"not installed: {', '.join(absent)}; as root: {INSTALL}"
    if accounts and (absent := [name for name in _ACCOUNTING_PROGRAMS if _which(name) is None]):
        return f"not installed: {', '.join(absent)}; as root: {INSTALL_ACCOUNTING}"
    if not may_be_root():
        return "a lab needs root (that of a container will do): Slurm's daemons run jobs for users"
    own_namespaces = [_which("unshare") or "unshare", "--uts", "--mount", "true"]
    with as_root():
        refused = subprocess.run(own_namespaces, capture_output=True).returncode
    if refused:
        return "this machine allows no namespaces; in a container, add the capability SYS_ADMIN"
    if cgroup and not os.access(FREEZER, os.W_OK):
        return f"{FREEZER} is not there, or cannot be written; do without --cgroup"
    return None


def _which(name: str) -> str | None:
    return shutil.which(name, path=_path())


def _path() -> str:
    return f"{os.environ.get('PATH', os.defpath)}:{SYSTEM_PATH}"


class LabPrograms:
    """Programs of Slurm, run with the environment of one lab.

    Raises:
        ClusterError: by any method, if a program fails; the message is the program's.
    """

    def __init__(self, settings: LabSettings) -> None:
        self.settings = settings
        self.directory = settings.directory

    @property
    def environment(self) -> dict[str, str]:
        """Variables that direct Slurm's commands to this lab."""
        return {"SLURM_CONF": str(self.settings.slurm_conf)}

    @property
    def variables(self) -> dict[str, str]:
        """The whole environment of started programs, without variables of a job around this
        process."""
        outside = {k: v for k, v in os.environ.items() if not k.startswith("SLURM_")}
        return outside | self.environment | {"PATH": _path()}

    @staticmethod
    def program(name: str) -> str:
        """Return the path of a daemon."""
        return _which(name) or name

    def run(self, *words: str | Path) -> str:
        """Run a command of Slurm, and return what it prints."""
        done = subprocess.run(
            [str(word) for word in words],
            env=self.variables,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
        )
        if done.returncode:
            reason = done.stderr.strip() or f"exit status {done.returncode}"
            raise ClusterError(f"{' '.join(map(str, words))}: {reason}")
        return done.stdout
