"""Ask a running job to save a checkpoint and continue.

The request is a file in the run directory, which the run looks for every few seconds; it saves
after the step under way. RUN is a run directory or the name of one below runs/. `stop RUN
--cancel` withdraws a request that waits.

examples:
  python -m verl_hpc save ppo_lab
  python -m verl_hpc save runs/ppo_lab
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from verl_hpc.cli.status_text import Status
    from verl_hpc.config.requests import Request


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="run directory or name")


def run(arguments: argparse.Namespace) -> int:
    from verl_hpc.cli.stop import ask
    from verl_hpc.config.requests import Request
    from verl_hpc.runs.find import find_run

    ask(find_run(arguments.run), Request(kind="save"), _promise)
    return 0


def _promise(status: Status, _: Request) -> str:
    from verl_hpc.metrics.text import duration

    pace = status.progress.seconds
    about = "" if pace is None else f", which takes {duration(pace)}"
    return f"it finishes the step under way{about}, saves and continues"
