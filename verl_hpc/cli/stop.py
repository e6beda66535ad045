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
from typing import TYPE_CHECKING

from verl_hpc.errors import ConfigError

if TYPE_CHECKING:
    from verl_hpc.cli.status_text import Status


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="run directory or name")
    when = parser.add_mutually_exclusive_group()
    when.add_argument(
        "--now", action="store_true", help="drop the step under way if no weights have changed yet"
    )
    when.add_argument("--after-step", type=int, metavar="N", help="not before N steps are done")
    when.add_argument("--cancel", action="store_true", help="withdraw what waits")


def run(arguments: argparse.Namespace) -> int:
    from verl_hpc.cli.stop_request import ask, cancel
    from verl_hpc.config.requests import Request
    from verl_hpc.runs.find import find_run

    directory = find_run(arguments.run)
    if arguments.cancel:
        cancel(directory)
        return 0
    after = arguments.after_step
    if after is not None and after < 1:
        raise ConfigError(f"--after-step {after}: a number of steps from 1 up")

    def promise(status: Status) -> str:
        if arguments.now:
            return _now()
        return _after_step(status, after or 0)

    ask(directory, Request(kind="stop", now=arguments.now, after_step=after or 0), promise)
    return 0


def _now() -> str:
    return (
        "it drops the step under way if that has changed no weights yet, and finishes it if it "
        "has; then it saves what is not saved and leaves for good. Ranks look between operators "
        "and while they generate"
    )


def _after_step(status: Status, after: int) -> str:
    from verl_hpc.metrics.text import duration

    done, total = status.progress.step, status.total_steps
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


if __name__ == "__main__":
    from verl_hpc.cli.main import run_verb

    run_verb("stop")
