"""The two ways to contain a program, and how each one starts it."""

from __future__ import annotations

import resource
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from verl_hpc.rewards.sandbox import seccomp
from verl_hpc.rewards.sandbox.limits import Limits
from verl_hpc.runtime.children import end_with_parent

HOME = "/tmp"  # noqa: S108
"""Directory of a program with namespaces."""
PROGRAM = "program.py"

_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib64", "/etc/ld.so.cache", "/etc/alternatives")
_MOST_OPEN_FILES = 256


@dataclass(frozen=True)
class Interpreter:
    """The interpreter of programs."""

    path: str
    paths: Sequence[str]
    """Directories that it needs, and that programs may read."""


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


def bubblewrap(
    interpreter: Interpreter, limits: Limits, program_fd: int, status_fd: int, rules_fd: int
) -> list[str]:
    """Return a command that gives a program namespaces of its own: no network, no other processes
    or users, and no files but the system's and the interpreter's, read-only, and a directory in
    memory.

    Args:
        interpreter: interpreter of the program.
        limits: limits of its directory.
        program_fd: descriptor from which the program's text is read.
        status_fd: descriptor to which bubblewrap writes once the program has ended.
        rules_fd: descriptor from which the filter of system calls is read.

    Raises:
        OSError: bubblewrap is not installed.
    """
    program = shutil.which("bwrap")
    if program is None:
        raise FileNotFoundError("bwrap is not installed")
    words = [program, "--unshare-all", "--unshare-user", "--disable-userns", "--die-with-parent"]
    words += ["--json-status-fd", str(status_fd), "--seccomp", str(rules_fd)]
    words += ["--new-session", "--cap-drop", "ALL", "--hostname", "sandbox", "--clearenv"]
    for name, value in environment(HOME).items():
        words += ["--setenv", name, value]
    # HOME comes first: an interpreter may be below it.
    words += ["--size", str(limits.files_bytes), "--tmpfs", HOME]
    for path in dict.fromkeys((*_SYSTEM, *interpreter.paths)):
        words += ["--ro-bind-try", path, path]
    words += ["--proc", "/proc", "--dev", "/dev", "--remount-ro", "/dev"]
    words += ["--ro-bind-data", str(program_fd), f"{HOME}/{PROGRAM}", "--chdir", HOME]
    words += ["--remount-ro", "/", "--", *command(interpreter, HOME)]
    return words


def command(interpreter: Interpreter, home: str) -> list[str]:
    """Return a command without variables, the user's packages or imports from the directory."""
    return [interpreter.path, "-I", "-B", str(Path(home) / PROGRAM)]


def restrict(limits: Limits, *, filtered: bool) -> Callable[[], None]:
    """Return a function for a process to call between fork and exec.

    Args:
        limits: limits that the kernel enforces for each process.
        filtered: install the filter of system calls here, not in bubblewrap.

    Raises:
        OSError: there is no filter for this machine.
    """
    program = seccomp.filter_program() if filtered else None
    cpu_s = max(int(limits.cpu_s) + 1, 1)

    def run() -> None:
        end_with_parent()
        _limit(resource.RLIMIT_CORE, 0)
        _limit(resource.RLIMIT_CPU, cpu_s)
        _limit(resource.RLIMIT_AS, limits.address_bytes)
        _limit(resource.RLIMIT_FSIZE, limits.files_bytes)
        _limit(resource.RLIMIT_NOFILE, _MOST_OPEN_FILES)
        if program is not None:
            seccomp.install(program)

    return run


def _limit(what: int, value: int) -> None:
    _, most = resource.getrlimit(what)
    value = value if most == resource.RLIM_INFINITY else min(value, most)
    resource.setrlimit(what, (value, value))
