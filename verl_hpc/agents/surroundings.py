"""What a program finds around it: files in a sandbox, and variables."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from verl_hpc.agents import forward
from verl_hpc.agents.image import entering
from verl_hpc.agents.programs import ProgramJob
from verl_hpc.rewards.sandbox.containment import (
    HOME,
    environment,
    environments_among,
    interpreter_of,
    namespaces,
)

ENDPOINT, FORWARDER = "/run/verl_hpc/endpoint", "/run/verl_hpc/forward.py"
ROOT = "/run/verl_hpc/root"
"""Where an image's files are in a sandbox: the forwarder, whose interpreter needs the system's
libraries, starts the program with this root."""
ROW, SCORE = "row.json", "score.json"

_OF_USERS = (
    *("/etc/passwd", "/etc/group", "/etc/hosts", "/etc/nsswitch.conf"),
    *("/etc/resolv.conf", "/etc/ssl"),
)
"""What shells, git and clients of HTTP look up."""
_PATH_OF_IMAGES = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def bubblewrap(
    job: ProgramJob, root: Path | None, status_fd: int, rules_fd: int, row_fd: int
) -> list[str]:
    """Return the first words of a command that gives a program its files; the forwarder follows.

    Args:
        job: the program.
        root: the files of its image; None is the system's.
        status_fd: as `namespaces` says, and `rules_fd`.
        row_fd: descriptor from which its row is read.
    """
    limits, at = job.limits, ROOT if root is not None else ""
    own = Path(job.directory or "/")
    places = [_prefix(job), own, own / ".venv", *map(Path, job.paths)]
    read = [*job.paths, *environments_among(places), *filter(None, [job.directory])]
    paths = interpreter_of(None, _OF_USERS if root is None else ()).paths
    share = job.network == "node"
    words = namespaces(paths, limits, status_fd, rules_fd, share_network=share, at=at)
    if root is not None:
        mounts = [f"{ROOT}{place}" for place in (HOME, "/proc", "/dev", *read)]
        words += [*entering(root, mounts, ROOT), "--cap-add", "CAP_SYS_CHROOT"]
    for place in dict.fromkeys(read):
        words += ["--ro-bind-try", place, f"{at}{place}"]
    # Semaphores and shared memory of several processes.
    words += ["--size", str(limits.files_bytes), "--tmpfs", f"{at}/dev/shm"]  # noqa: S108
    words += ["--ro-bind", forward.__file__, FORWARDER, "--ro-bind", job.socket, ENDPOINT]
    words += ["--file", str(row_fd), f"{at}{HOME}/{ROW}", "--remount-ro", "/"]
    return [*words, "--chdir", "/", "--as-pid-1", "--"]


def _prefix(job: ProgramJob) -> Path:
    """Return the directory above that of the command's first word: its environment, if it has
    one."""
    return Path(job.directory or "/", job.command[0]).parent.parent


def variables(job: ProgramJob, home: str) -> dict[str, str]:
    """Return all variables of a program but those that the forwarder adds."""
    values = environment(home)
    places = [] if job.image else [str(Path(sys.executable).parent)]
    if (_prefix(job) / "pyvenv.cfg").exists():
        places.insert(0, str(_prefix(job) / "bin"))
    path = _PATH_OF_IMAGES if job.image else values["PATH"]
    if job.sandbox == "none":
        values = {**os.environ, **values}
        path = os.environ.get("PATH", path)
    return values | {
        "PATH": os.pathsep.join([*places, path]),
        "TMPDIR": home,
        "VERL_HPC_ROW": f"{home}/{ROW}",
        "VERL_HPC_SCORE": f"{home}/{SCORE}",
        "OPENAI_API_KEY": job.token,
        "ANTHROPIC_API_KEY": job.token,
    }
