"""Limits of a program and its result, the two ways to contain it, and how each starts it."""

from __future__ import annotations

import os
import random
import re
import resource
import shutil
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

from verl_hpc.rewards.sandbox import seccomp
from verl_hpc.runtime.children import adopt_orphans, end_with_parent

MIB = 2**20

Ending = Literal[
    "exited", "timed_out", "out_of_memory", "too_many_processes", "output_too_large", "killed"
]
"""How a program ended. exited: by itself, with a status; too_many_processes: also by starting a
single one; killed: by a signal that no limit sends."""


@dataclass(frozen=True)
class Limits:
    """Limits of one program, of all its processes together."""

    timeout_s: float = 10.0
    """Seconds from its start to its end."""
    cpu_s: float = 10.0
    """Seconds of processor time."""
    memory_bytes: int = 1024 * MIB
    """Resident memory."""
    tasks: int = 64
    """Processes and threads."""
    files_bytes: int = 64 * MIB
    """Most bytes of its directory; without namespaces, of one file."""
    output_bytes: int = MIB
    """Most bytes of its output, and as many of its error output."""
    cpus: int | None = None
    """Processors that it may use; None is all of its parent's."""


@dataclass(frozen=True)
class Result:
    """Result of a program."""

    ending: Ending
    status: int
    """Exit status where it exited, number of the signal where it was killed, else 0."""
    stdout: str
    """Output that was read, at most `Limits.output_bytes`. Bytes that are not UTF-8 are
    replaced."""
    stderr: str
    wall_s: float
    message: str = ""
    """Limit that the program exceeded."""


HOME = "/tmp"  # noqa: S108
"""Directory of a program with namespaces."""
PROGRAM = "program.py"

_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib64", "/etc/ld.so.cache", "/etc/alternatives")
_MOST_OPEN_FILES, _OF_A_TREE = 256, 1024


@dataclass(frozen=True)
class Interpreter:
    """The interpreter of programs."""

    path: str
    paths: Sequence[str]
    """Directories that it needs, and that programs may read."""


@cache
def interpreter_of(python: str | None, paths: tuple[str, ...]) -> Interpreter:
    """Return an interpreter, this process's for None, with what it needs and further paths."""
    path = python or sys.executable
    own = (sys.prefix, sys.base_prefix, sys.exec_prefix) if python is None else ()
    # A virtual environment's interpreter is a link.
    real = str(Path(path).resolve().parents[1])
    return Interpreter(path, (*own, real, *paths))


def environments_among(places: Iterable[Path]) -> tuple[str, ...]:
    """Return the virtual environments among some directories, with those of their interpreters."""
    found: list[str] = []
    for place in places:
        with suppress(OSError):
            settings = (place / "pyvenv.cfg").read_text(encoding="utf-8", errors="replace")
            home = re.search(r"^home *= *(.+)$", settings, re.MULTILINE)
            linked = (place / "bin/python").resolve()
            bases = {Path(home[1].strip()).parent if home else place, linked.parents[1]}
            found += map(str, [place, *sorted(bases - {Path("/")})])
    return tuple(found)


def environment(home: str) -> dict[str, str]:
    """Return all environment variables of a program."""
    return {
        "HOME": home,
        "PATH": "/usr/bin:/bin",
        "LANG": "C.UTF-8",
        # Libraries would start a thread for every core of the node.
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
    }


def namespaces(
    paths: Sequence[str],
    limits: Limits,
    status_fd: int,
    rules_fd: int,
    *,
    share_network: bool = False,
    at: str = "",
) -> list[str]:
    """Return the first words of a command that gives a program namespaces of its own: no network,
    no other processes or users, and no files but the system's, read-only, and a directory in
    memory. Further options and the program follow.

    Args:
        paths: further directories that the program may read.
        limits: limits of its directory.
        status_fd: descriptor to which bubblewrap writes once the program has ended.
        rules_fd: descriptor from which the filter of system calls is read.
        share_network: leave it the node's network.
        at: directory that will be the program's root, which has its home and devices.

    Raises:
        OSError: bubblewrap is not installed.
    """
    program = shutil.which("bwrap")
    if program is None:
        raise FileNotFoundError("bwrap is not installed")
    words = [program, "--unshare-all", "--unshare-user", "--disable-userns", "--die-with-parent"]
    words += ["--share-net"] * share_network
    words += ["--json-status-fd", str(status_fd), "--seccomp", str(rules_fd)]
    words += ["--new-session", "--cap-drop", "ALL", "--hostname", "sandbox"]
    # HOME comes first: an interpreter may be below it.
    words += ["--size", str(limits.files_bytes), "--tmpfs", f"{at}{HOME}"]
    for path in dict.fromkeys((*_SYSTEM, *paths)):
        words += ["--ro-bind-try", path, path]
    words += ["--proc", f"{at}/proc", "--dev", f"{at}/dev", "--remount-ro", f"{at}/dev"]
    return words


def bubblewrap(
    interpreter: Interpreter, limits: Limits, program_fd: int, status_fd: int, rules_fd: int
) -> list[str]:
    """Return a command that runs the program that is read from `program_fd` in namespaces.

    Raises:
        OSError: bubblewrap is not installed.
    """
    words = namespaces(interpreter.paths, limits, status_fd, rules_fd)
    words += ["--ro-bind-data", str(program_fd), f"{HOME}/{PROGRAM}", "--chdir", HOME]
    words += ["--remount-ro", "/", "--", *command(interpreter, HOME)]
    return words


def command(interpreter: Interpreter, home: str) -> list[str]:
    """Return a command without variables, the user's packages or imports from the directory."""
    return [interpreter.path, "-I", "-B", str(Path(home) / PROGRAM)]


def restrict(limits: Limits, *, filtered: bool, tree: bool = False) -> Callable[[], None]:
    """Return a function for a process to call between fork and exec.

    Args:
        limits: limits that the kernel enforces for each process.
        filtered: install the filter of system calls here, not in bubblewrap.
        tree: the program may start others; the process adopts those whose parents end.

    Raises:
        OSError: there is no filter for this machine.
    """
    program = seccomp.filter_program() if filtered else None
    cpu_s = max(int(limits.cpu_s) + 1, 1)

    def run() -> None:
        end_with_parent()
        with suppress(OSError):  # a node without memory ends programs before ranks
            Path("/proc/self/oom_score_adj").write_text("1000")
        if limits.cpus is not None:
            may = sorted(os.sched_getaffinity(0))
            os.sched_setaffinity(0, random.sample(may, min(limits.cpus, len(may))))
        _limit(resource.RLIMIT_CORE, 0)
        _limit(resource.RLIMIT_CPU, cpu_s)
        _limit(resource.RLIMIT_FSIZE, limits.files_bytes)
        _limit(resource.RLIMIT_NOFILE, _OF_A_TREE if tree else _MOST_OPEN_FILES)
        if tree:
            adopt_orphans()
            os.nice(10)  # for ranks, and for the keeper, which must see in time what grows fast
        else:
            # Interpreters and libraries reserve more than they use.
            _limit(resource.RLIMIT_AS, max(4 * limits.memory_bytes, 4096 * MIB))
        if program is not None:
            seccomp.install(program)

    return run


def _limit(what: int, value: int) -> None:
    _, most = resource.getrlimit(what)
    value = value if most == resource.RLIM_INFINITY else min(value, most)
    resource.setrlimit(what, (value, value))
