"""Leave a request for a run, and say what will become of it, for `stop` and `save`."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from verl_hpc.cli.status import read_status
from verl_hpc.cli.status_text import Status, described, headline
from verl_hpc.config.requests import KINDS, Request, leave_request, read_requests, withdraw
from verl_hpc.errors import ClusterError, ConfigError
from verl_hpc.runs.jobs import cluster_of
from verl_hpc.slurm.tools import scancel


def ask(directory: Path, request: Request, promise: Callable[[Status], str]) -> None:
    """Leave the request and print what will happen.

    Args:
        directory: run directory.
        request: the request.
        promise: function that says in one sentence what a run in this state will do.

    Raises:
        ClusterError: the run is over or waits in the queue.
        ConfigError: the request is impossible, or the directory cannot be written.
    """
    status = read_status(directory, time.time())
    _refuse_absent(status, request)
    text = promise(status)
    before = read_requests(directory)
    leave_request(directory, request)
    for other in before:
        word = "replaces" if other.kind == request.kind else "waits as well"
        print(f"{word}: {described(other)}")
    print(f"{directory}: {text}.")
    if status.state.name in ("no heartbeat", "unknown", "not started"):
        print(
            f"It may be gone, though ({headline(status)}): a request waits for the next start; "
            f"`python -m verl_hpc stop {directory} --cancel` withdraws it."
        )


def cancel(directory: Path) -> None:
    """Withdraw the requests that wait, and say which they were."""
    waiting = read_requests(directory)
    try:
        for kind in KINDS:
            withdraw(directory, kind)
    except OSError as error:
        raise ConfigError(f"cannot withdraw a request in {directory}: {error}") from None
    if not waiting:
        print(f"{directory}: no request waits")
    for request in waiting:
        print(f"{directory}: withdrawn: {described(request)}")


def _refuse_absent(status: Status, request: Request) -> None:
    """Refuse a request to a run that is not there: it would surprise the next start."""
    state = status.state
    if state.is_over:
        raise ClusterError(
            f"{status.run} is not under way ({headline(status)}): there is nothing to "
            f"{request.kind}"
        )
    if state.name == "queued":
        ends = scancel(cluster_of(status.run / "job", state.job_id), state.job_id or "JOB")
        raise ClusterError(
            f"{status.run} is not under way ({headline(status)}): `{ends}` takes it out of the "
            "queue"
        )
