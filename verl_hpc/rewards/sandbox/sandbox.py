"""Run programs in a sandbox: the interface for the rest of the package."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from dataclasses import asdict
from functools import cache
from typing import Literal

from verl_hpc.errors import RewardError, SandboxError
from verl_hpc.package import FOLDER
from verl_hpc.rewards.sandbox.containment import Interpreter, Limits, Result, interpreter_of
from verl_hpc.rewards.sandbox.keeper import Job
from verl_hpc.runs.records import as_record
from verl_hpc.runtime import environment, helper_process
from verl_hpc.runtime.helper_process import Helper
from verl_hpc.runtime.messages import receive, send

_logger = logging.getLogger(__name__)

Containment = Literal["auto", "bubblewrap", "limits"]

NOT_CONTAINED = (
    "programs run without namespaces, under limits of resources and a filter of system calls. "
    "They may read and write all files that this user may, those of /proc included"
)
_ENDS_WITHIN_S = 60.0
"""Seconds that ending a program may take after its own time, on a busy node."""


class Sandbox:
    """Runs programs under limits, apart from this process.

    `run` may be called from several threads; as many programs as `max_concurrent` run at a time.

    Args:
        limits: of each program.
        containment: bubblewrap, limits, or auto for the first of them that works here.
        max_concurrent: most programs at a time.
        python: interpreter of the programs; None takes this process's.
        paths: directories that programs may read in addition to those of interpreter and system.

    Raises:
        RewardError: no containment that is allowed works here.
    """

    def __init__(
        self,
        limits: Limits | None = None,
        containment: Containment = "auto",
        max_concurrent: int = 4,
        python: str | None = None,
        paths: Sequence[str] = (),
    ) -> None:
        self.limits = limits or Limits()
        self.interpreter = interpreter_of(python, tuple(paths))
        self.is_contained = _choose(containment, self.interpreter)
        """Whether bubblewrap contains programs."""
        self._free = threading.BoundedSemaphore(max_concurrent)

    def run(self, program: str, stdin: str = "") -> Result:
        """Run a program to its end, or to a limit.

        Args:
            program: the text of a Python file.
            stdin: its standard input.

        Raises:
            SandboxError: it could not be run, which says nothing about the program.
        """
        job = Job(program, stdin, self.limits, self.interpreter, self.is_contained)
        with self._free:
            return _run(job)


@cache
def start_helper() -> Helper:
    """Start this process's helper, if there is none; before MPI, if programs are known to be
    run."""
    root = FOLDER.parent
    # Programs without namespaces can read variables of other processes.
    variables = environment.for_helper(root)
    return helper_process.start("verl_hpc.rewards.sandbox.helper", variables, "/")


def _run(job: Job) -> Result:
    try:
        ours = start_helper().connect()
    except OSError as error:
        raise SandboxError(f"the sandbox's helper is gone ({error})") from error
    with ours:
        ours.settimeout(job.limits.timeout_s + _ENDS_WITHIN_S)
        try:
            send(ours, asdict(job))
            answer = receive(ours)
        except (EOFError, OSError) as error:
            raise SandboxError(
                "the sandbox's helper gives no answer about a program "
                f"({type(error).__name__}); is the node out of memory or processes?"
            ) from error
    if answer["failure"]:
        raise SandboxError(f"a program could not be run: {answer['failure']}")
    return as_record(answer["result"], Result)


@cache
def _choose(containment: Containment, interpreter: Interpreter) -> bool:
    """Whether bubblewrap contains programs here."""
    reasons: list[str] = []
    for name in ("bubblewrap", "limits"):
        if containment not in ("auto", name):
            continue
        reason = _why_not(interpreter, name == "bubblewrap")
        if reason is None:
            _tell(name, reasons)
            return name == "bubblewrap"
        reasons.append(f"{name}: {reason}")
    raise RewardError(
        f"containment = {containment}: no program can be run on {environment.node_name()}; "
        f"{'; '.join(reasons)}; docs/rewards.md says what each needs"
    )


def _why_not(interpreter: Interpreter, contained: bool) -> str | None:
    """Return what goes wrong with a trivial program, or None."""
    try:
        result = _run(Job("print(6 * 7)", "", Limits(timeout_s=60.0), interpreter, contained))
    except SandboxError as error:
        return str(error)
    if (result.ending, result.status, result.stdout) == ("exited", 0, "42\n"):
        return None
    last = result.stderr.strip().rpartition("\n")[2]
    return f"{interpreter.path} {result.ending} with status {result.status}: {last or 'no word'}"


def _tell(name: str, reasons: Sequence[str]) -> None:
    if name == "limits" and environment.launcher_rank() == 0:
        why = f" ({'; '.join(reasons)})" if reasons else ""
        _logger.warning("%s%s; docs/rewards.md says more", NOT_CONTAINED, why)
