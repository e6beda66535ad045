"""Ask a running job to save and stop for good.

No signal is needed and no job id: the request is a file in the run directory, so that everybody
who may write there can ask. The run looks for it every few seconds. RUN is a run directory or the
name of one below runs/. A later stop replaces an earlier one; a save changes nothing about it.

examples:
  python -m verl_hpc stop ppo_lab                    # after the step under way
  python -m verl_hpc stop ppo_lab --after-step 200
  python -m verl_hpc stop runs/ppo_lab --now         # do not finish the step if it can be dropped
  python -m verl_hpc stop ppo_lab --cancel           # withdraw what waits, also a save
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from verl_hpc.errors import ClusterError, ConfigError

if TYPE_CHECKING:
    from verl_hpc.cli.status_text import Status
    from verl_hpc.config.requests import Request


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="run directory or name")
    when = parser.add_mutually_exclusive_group()
    when.add_argument(
        "--now", action="store_true", help="drop the step under way if no weights have changed yet"
    )
    when.add_argument("--after-step", type=int, metavar="N", help="not before N steps are done")
    when.add_argument("--cancel", action="store_true", help="withdraw what waits")


def run(arguments: argparse.Namespace) -> int:
    from verl_hpc.config.requests import Request
    from verl_hpc.runs.find import find_run

    directory = find_run(arguments.run)
    if arguments.cancel:
        _cancel(directory)
        return 0
    after = arguments.after_step
    if after is not None and after < 1:
        raise ConfigError(f"--after-step {after}: a number of steps from 1 up")
    ask(directory, Request(kind="stop", now=arguments.now, after_step=after or 0), _promise)
    return 0


def _promise(status: Status, request: Request) -> str:
    from verl_hpc.metrics.text import duration

    if request.now:
        return (
            "it drops the step under way if that has changed no weights yet, and finishes it if it "
            "has; then it saves what is not saved and leaves for good. Ranks look between "
            "operators and while they generate"
        )
    after, done, total = request.after_step, status.progress.step, status.total_steps
    if total is not None and after >= total:
        raise ConfigError(
            f"--after-step {after}: the run has {total} steps and ends by itself; name an earlier "
            "one"
        )
    pace = status.progress.seconds
    if after > done + 1:
        about = "" if pace is None else f", in about {duration((after - done) * pace)}"
        return f"when step {after} is done{about}, it saves and leaves for good"
    early = f"step {after} is done already; " if 0 < after <= done else ""
    about = "" if pace is None else f", which takes {duration(pace)}"
    return f"{early}it finishes the step under way{about}, saves and leaves for good"


def ask(directory: Path, request: Request, promise: Callable[[Status, Request], str]) -> None:
    """Leave a request for a run, and print what will become of it.

    Args:
        directory: run directory.
        request: the request.
        promise: function that says in one sentence what a run in this state will do.

    Raises:
        ClusterError: the run is over or waits in the queue.
        ConfigError: the request is impossible, or the directory cannot be written.
    """

    from verl_hpc.cli.status import read_status
    from verl_hpc.cli.status_text import described, headline
    from verl_hpc.config.requests import leave_request, read_requests

    status = read_status(directory, time.time())
    _refuse_absent(status, request)
    text = promise(status, request)
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


def _cancel(directory: Path) -> None:
    """Withdraw the requests that wait, and say which they were."""

    from verl_hpc.cli.status_text import described
    from verl_hpc.config.requests import KINDS, read_requests, withdraw

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

    from verl_hpc.cli.status_text import headline
    from verl_hpc.runs.jobs import cluster_of
    from verl_hpc.slurm.tools import scancel

    state = status.state
    absent = f"{status.run} is not under way ({headline(status)})"
    if state.is_over:
        raise ClusterError(f"{absent}: there is nothing to {request.kind}")
    if state.name == "queued":
        ends = scancel(cluster_of(status.run / "job", state.job_id), state.job_id or "JOB")
        raise ClusterError(f"{absent}: `{ends}` takes it out of the queue")
