"""Where every rank of a run is: stacks of all ranks, those that hold up the others first.

Ranks in the same place are shown once. Stacks are read with py-spy where it is installed and
tracing is allowed, and are otherwise written by the ranks themselves at a signal; the run continues
either way. Ranks on other nodes are reached by a short step of their job (srun --overlap). RUN is
a run directory or the name of one below runs/; without it, the run last at work. The exit status
is 1 if no rank could be reached.

examples:
  python -m verl_hpc hang
  python -m verl_hpc hang ppo_lab --full
  python -m verl_hpc hang runs/ppo_lab --by signal
  python -m verl_hpc hang ppo_lab --json
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import TYPE_CHECKING

from verl_hpc.errors import ConfigError

if TYPE_CHECKING:
    from verl_hpc.runs.ranks import Ranks


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("run", nargs="?", metavar="RUN", help="run directory or name (default: the last at work)")
    add(
        "--by",
        choices=("auto", "py-spy", "signal"),
        default="auto",
        help="how stacks are taken (default: py-spy if it can, else signal)",
    )
    add("--full", action="store_true", help="all calls of all threads")
    add("--json", action="store_true", help="one JSON object")


def run(arguments: argparse.Namespace) -> int:
    from verl_hpc.cli.hang_text import as_json, as_text
    from verl_hpc.runs.find import find_run, newest_run, no_runs_yet
    from verl_hpc.runs.stacks.gather import gather_stacks

    directory = find_run(arguments.run) if arguments.run else newest_run()
    if directory is None:
        raise ConfigError(no_runs_yet())
    ranks = ranks_under_way(directory, "look at")
    stacks = gather_stacks(directory, ranks, arguments.by)
    now = time.time()
    if arguments.json:
        print(as_json(directory, ranks, stacks, now))
    else:
        print(as_text(directory, ranks, stacks, now, full=arguments.full))
    return 0 if any(stack.threads for stack in stacks) else 1


def ranks_under_way(directory: Path, action: str) -> Ranks:
    """Return the ranks of a run that has not ended.

    Args:
        directory: run directory.
        action: what the caller wants to do with a rank, for the message.

    Raises:
        ClusterError: the run is over, or has no ranks.json yet.
    """
    from verl_hpc.errors import ClusterError
    from verl_hpc.runs.queue import Answer
    from verl_hpc.runs.ranks import read_ranks
    from verl_hpc.runs.status import conclude, look

    state = conclude(look(directory, time.time()), Answer())
    if state.is_over:
        detail = f": {state.detail}" if state.detail else ""
        raise ClusterError(
            f"{directory} is not under way ({state.name}{detail}): no rank to {action}"
        )
    ranks = read_ranks(directory)
    if ranks is None:
        raise ClusterError(
            f"{directory} has no ranks.json: its ranks have not found each other yet, or rank 0 "
            f"cannot write there; `python -m verl_hpc logs {directory} -f` shows what they say"
        )
    return ranks


if __name__ == "__main__":
    from verl_hpc.cli.main import run_verb

    run_verb("hang")
