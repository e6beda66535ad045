"""The process that keepers of programs are forked from: `python -m verl_hpc.agents.helper FD`.

    helper --fork--> guard --fork--> keeper --exec--> [bubblewrap,] forward.py --> the program

Whichever of guard and keeper is killed, the other one ends the program and clears up; a guard ends
with the helper.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import IO
from uuid import uuid4

from verl_hpc.agents import forward
from verl_hpc.agents.programs import Ended, ProgramJob
from verl_hpc.rewards.sandbox.containment import (
    HOME,
    environment,
    environments_among,
    interpreter_of,
    namespaces,
    restrict,
)
from verl_hpc.rewards.sandbox.keeper import Started, answer, keep, remove_directory
from verl_hpc.rewards.sandbox.seccomp import filter_program
from verl_hpc.runtime.children import adopt_orphans, end_children, wait_for
from verl_hpc.runtime.helper_process import serve
from verl_hpc.runtime.processes import end_all

_LOOK_EVERY_S = 0.1
_ENDS_WITHIN_S = 30.0
_INSIDE = "/run/verl_hpc"
"""Directory of the forwarder and its socket in a sandbox."""
_ROW, _SCORE = "row.json", "score.json"
_FORWARDER = 2
"""Threads of the forwarder; bubblewrap adds a process outside the sandbox."""


def guard(patron: socket.socket) -> None:
    """Have a keeper run what a patron asks for."""
    # Slurm sends it to all processes; the patron's end says when to stop, and to clear up.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    adopt_orphans()
    # The keeper makes it, so that one of both is there to remove it.
    directory = f"{tempfile.gettempdir()}/verl_hpc_program_{uuid4().hex}"
    keeper = os.fork()
    if keeper == 0:
        answer(ProgramJob, partial(run, directory), patron)
        return
    wait_for(keeper)
    end_all(os.getpid())
    remove_directory(directory)


def run(directory: str, job: ProgramJob, patron: socket.socket) -> Ended:
    """Run one program to its end; raises as `keep`.

    Args:
        directory: what the program's becomes, if it has none in memory.
        job: the program.
        patron: socket of the process that asked.
    """
    with tempfile.TemporaryFile() as report:
        try:
            result = keep(_started(directory, job, report), job.limits, patron, _LOOK_EVERY_S)
        finally:
            remove_directory(directory)
        read = os.pread(report.fileno(), 2 * forward.MOST_SCORE_BYTES, 0)
    kind, text = read[:1], read[1:].decode(errors="replace")
    ended = Ended(result.ending, result.status, result.stdout, None, result.wall_s, result.message)
    if result.ending != "exited" or not kind:
        return ended
    if kind == forward.GOOD:
        return replace(ended, score=text)
    return replace(ended, message=f"the file named by VERL_HPC_SCORE cannot be read: {text}")


@contextmanager
def _started(directory: str, job: ProgramJob, report: IO[bytes]) -> Iterator[Started]:
    contained = job.sandbox == "bubblewrap"
    with (
        tempfile.TemporaryFile() as row,
        tempfile.TemporaryFile() as status,
        tempfile.TemporaryFile() as rules,
    ):
        words, fds = [], [report.fileno()]
        endpoint, forwarder, home = job.socket, forward.__file__, directory
        if contained:
            rules.write(filter_program(tree=True))
            row.write(job.row.encode())
            for file in (rules, row):
                file.seek(0)
            fds += [status.fileno(), rules.fileno(), row.fileno()]
            words = _bubblewrap(job, *fds[1:])
            endpoint, forwarder, home = f"{_INSIDE}/endpoint", f"{_INSIDE}/forward.py", HOME
        else:
            Path(home).mkdir(mode=0o700)
            Path(home, _ROW).write_text(job.row)
        words += [sys.executable, "-I", "-S", "-B", forwarder, endpoint, str(report.fileno())]
        process = subprocess.Popen(
            [*words, *job.command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd="/" if contained else job.directory or directory,
            env=_variables(job, home),
            pass_fds=fds,
            start_new_session=True,
            # This process has one thread.
            preexec_fn=restrict(job.limits, filtered=False, tree=True),
        )
        yield Started(process, status.fileno() if contained else None, _FORWARDER + contained)


def _bubblewrap(job: ProgramJob, status_fd: int, rules_fd: int, row_fd: int) -> list[str]:
    limits, share = job.limits, job.network == "node"
    own = Path(job.directory or "/")
    places = [_prefix(job), own, own / ".venv", *map(Path, job.paths)]
    read = *_OF_USERS, *job.paths, *environments_among(places)
    paths = interpreter_of(None, read).paths
    words = namespaces(paths, limits, status_fd, rules_fd, share_network=share)
    if job.directory is not None:
        words += ["--ro-bind", job.directory, job.directory]
    # Semaphores and shared memory of several processes.
    words += ["--size", str(limits.files_bytes), "--tmpfs", "/dev/shm"]  # noqa: S108
    words += ["--ro-bind", forward.__file__, f"{_INSIDE}/forward.py"]
    words += ["--ro-bind", job.socket, f"{_INSIDE}/endpoint"]
    words += ["--file", str(row_fd), f"{HOME}/{_ROW}", "--remount-ro", "/"]
    return [*words, "--chdir", job.directory or HOME, "--as-pid-1", "--"]


_OF_USERS = (
    *("/etc/passwd", "/etc/group", "/etc/hosts", "/etc/nsswitch.conf"),
    *("/etc/resolv.conf", "/etc/ssl"),
)
"""What shells, git and clients of HTTP look up."""


def _prefix(job: ProgramJob) -> Path:
    """Return the directory above that of the command's first word: its environment, if it has
    one."""
    return Path(job.directory or "/", job.command[0]).parent.parent


def _variables(job: ProgramJob, home: str) -> dict[str, str]:
    """Return all variables of a program but those that the forwarder adds."""
    variables = environment(home)
    interpreter, path = str(Path(sys.executable).parent), variables["PATH"]
    if (_prefix(job) / "pyvenv.cfg").exists():
        interpreter = f"{_prefix(job) / 'bin'}{os.pathsep}{interpreter}"
    if job.sandbox == "none":
        variables = {**os.environ, **variables}
        path = os.environ.get("PATH", path)
    return variables | {
        "PATH": os.pathsep.join((interpreter, path)),
        "TMPDIR": home,
        "VERL_HPC_ROW": f"{home}/{_ROW}",
        "VERL_HPC_SCORE": f"{home}/{_SCORE}",
        "OPENAI_API_KEY": job.token,
        "ANTHROPIC_API_KEY": job.token,
    }


if __name__ == "__main__":
    tempfile.gettempdir()  # once for all; it writes a file to find out
    serve(socket.socket(fileno=int(sys.argv[1])), guard)
    # Keepers see that nobody waits for them, and clear up.
    end_children(_ENDS_WITHIN_S)
