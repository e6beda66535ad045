"""What the ranks of a run said, node by node, or the first failure among them.

Reads the logs of the last start, below RUN/job/attempts/. RUN is a run directory or the name of
one below runs/. Each line has its node and rank before it. The exit status of --first-error is 1
if it finds none.

examples:
  python -m verl_hpc logs ppo_lab --first-error
  python -m verl_hpc logs ppo_lab --rank 0
  python -m verl_hpc logs ppo_lab -f                 # and of the starts that follow
  python -m verl_hpc logs runs/ppo_lab --attempt 0
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from verl_hpc.errors import ClusterError
from verl_hpc.runs.find import find_run
from verl_hpc.runs.logs.errors import first_error
from verl_hpc.runs.logs.read import Follower, attempt_directory, node_logs, read_lines

_POLL_S = 1.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("run", metavar="RUN", help="run directory or name")
    add("--rank", type=int, metavar="R", help="only this rank's lines")
    add("--attempt", type=int, metavar="K", help="start to read, from 0 (default: the last)")
    how = parser.add_mutually_exclusive_group()
    how.add_argument(
        "--first-error", action="store_true", help="the report of the rank that failed first"
    )
    how.add_argument("-f", "--follow", action="store_true", help="keep following until Ctrl-C")


def run(arguments: argparse.Namespace) -> int:
    directory = find_run(arguments.run)
    if arguments.first_error:
        return _first_error(directory, arguments)
    (_follow if arguments.follow else _all)(directory, arguments)
    return 0


def _all(directory: Path, arguments: argparse.Namespace) -> None:
    attempt = attempt_directory(directory, arguments.attempt)
    count = 0
    for log in node_logs(attempt):
        for line in read_lines(log, arguments.rank):
            print(line)
            count += 1
    if not count and arguments.rank is not None:
        raise ClusterError(f"--rank {arguments.rank}: said nothing in {attempt}")
    if not count:
        print(f"{attempt}: nothing yet", file=sys.stderr)


def _first_error(directory: Path, arguments: argparse.Namespace) -> int:
    attempt = attempt_directory(directory, arguments.attempt)
    failure = first_error(attempt, arguments.rank)
    if failure is None:
        print(f"{attempt}: no error found", file=sys.stderr)
        return 1
    who = "Slurm" if failure.rank is None else f"rank {failure.rank}"
    when = f", {failure.time}" if failure.time else ""
    print(f"== attempt {attempt.name}, {failure.node}, {who}{when}")
    print("\n".join(failure.lines))
    if failure.num_others:
        print(f"== {failure.num_others} other ranks failed, too; --rank R shows one")
    return 0


def _follow(directory: Path, arguments: argparse.Namespace) -> None:
    follower = Follower(directory, arguments.attempt, arguments.rank)
    shown: Path | None = None
    while True:
        for line in follower.news():
            if follower.directory != shown:
                shown = follower.directory
                print(f"== attempt {shown.name}")
            print(line)
        sys.stdout.flush()
        time.sleep(_POLL_S)
