"""Jobs that begin as forks of a process that has imported what ranks need.

Imports are most of a short job's time. `train --ranks N` shares them between the ranks of a job;
here the jobs of a pytest worker share them, too. All else is as below
`python -m verl_hpc train --ranks N`: the ranks are forks of the job's process, mpiexec starts what
stands in for them, and MPI starts in each.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import cache
from multiprocessing import forkserver, get_context
from pathlib import Path
from unittest.mock import patch


class ForkedJob:
    """A job of the command line, as far as `subprocess.Popen` that tests need."""

    def __init__(
        self, words: Sequence[str], environ: dict[str, str], before: Callable[[], None] | None
    ) -> None:
        self._output = tempfile.NamedTemporaryFile(prefix="job_", suffix=".log")  # noqa: SIM115
        given = (list(words), environ, str(Path.cwd()), self._output.name, before)
        self._process = _server().Process(target=_run, args=given)
        self._process.start()
        assert self._process.pid is not None
        self.pid: int = self._process.pid
        self.send_signal = lambda number: os.kill(self.pid, number)
        self.kill = self._process.kill

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        """The exit status, or None while it runs."""
        return self._process.exitcode

    def communicate(self, timeout: float | None = None) -> tuple[str, None]:
        """Wait for the end; what it has printed.

        Raises:
            subprocess.TimeoutExpired: it still runs.
        """
        self._process.join(timeout)
        if self.poll() is None:
            raise subprocess.TimeoutExpired("verl_hpc", timeout or 0.0)
        return Path(self._output.name).read_text(errors="replace"), None


@cache
def _server():
    context = get_context("forkserver")
    context.set_forkserver_preload(["tests.jobs.imported"])
    # Python reads the seed of its hashes when it starts, and ranks must agree on it.
    with patch.dict(os.environ, PYTHONHASHSEED="0"):
        forkserver.ensure_running()
    return context


def _run(
    words: list[str],
    environ: dict[str, str],
    directory: str,
    output: str,
    before: Callable[[], None] | None,
) -> None:
    """In the fork: the command line, with that environment, its output in a file."""
    with Path(output).open("ab", buffering=0) as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    os.environ.clear()
    os.environ.update(environ)
    os.chdir(directory)
    sys.argv = ["verl_hpc", *words]
    status: object = 1
    try:
        from verl_hpc.cli.main import main

        if before is not None:
            before()
        status = main(words)
    except SystemExit as leaves:
        status = leaves.code
    except BaseException:
        sys.excepthook(*sys.exc_info())
    # multiprocessing would skip atexit, where a rank takes leave of MPI.
    ctypes.pythonapi.Py_Exit(status if isinstance(status, int) else int(status is not None))
