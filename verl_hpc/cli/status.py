"""What a run does now: state, step, pace, rewards, last save, time to go.

RUN is a run directory or the name of one below runs/; without it, the run last at work. The run's
own files are read first; Slurm is asked only where they leave a question, and at most every 30 s.
Works without Slurm as well.

examples:
  python -m verl_hpc status
  python -m verl_hpc status ppo_lab --watch
  python -m verl_hpc status runs/ppo_lab --json
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

from verl_hpc.cli.status_progress import read_progress
from verl_hpc.cli.status_text import Status, as_json, as_text
from verl_hpc.runs.find import find_run, newest_run, no_runs_yet, restart_budget, total_steps
from verl_hpc.runs.queue import ask_slurm
from verl_hpc.runs.ranks import read_ranks
from verl_hpc.runs.status import conclude, last_save, look

_REDRAW_S = 2.0
_CLEAR = "\x1b[H\x1b[2J"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("run", nargs="?", metavar="RUN", help="run directory or name (default: the last at work)")
    add("--watch", action="store_true", help="refresh until the run ends, or Ctrl-C")
    add("--json", action="store_true", help="one JSON object; with --watch one a line")


def run(arguments: argparse.Namespace) -> int:
    directory = find_run(arguments.run) if arguments.run else newest_run()
    if directory is None:
        print("null" if arguments.json else no_runs_yet())
        return 0
    while True:
        status = read_status(directory, time.time())
        _show(status, arguments)
        if not arguments.watch or status.state.is_over:
            break
        time.sleep(_REDRAW_S)
    return 0


def read_status(directory: Path, now: float) -> Status:
    """Read the status of a run once.

    Args:
        directory: run directory.
        now: seconds since the epoch.
    """
    # It imports pydantic, which takes longer than all the rest; `list` does without.
    from verl_hpc.config.requests import read_requests

    progress = read_progress(directory)
    sight = look(directory, now, progress.longest_s)
    answer = ask_slurm(directory, sight.asks())
    total = sight.beat.total_steps if sight.beat is not None else None
    return Status(
        run=directory,
        sight=sight,
        state=conclude(sight, answer),
        progress=progress,
        total_steps=total_steps(directory) if total is None else total,
        most_restarts=restart_budget(directory),
        save=last_save(directory),
        requests=tuple(read_requests(directory)),
        problem=answer.problem,
        ranks=read_ranks(directory) if sight.beat and sight.beat.placements else None,
    )


def _show(status: Status, arguments: argparse.Namespace) -> None:
    if arguments.json:
        print(json.dumps(as_json(status), indent=None if arguments.watch else 1), flush=True)
    elif arguments.watch and sys.stdout.isatty():
        print(f"{_CLEAR}{as_text(status)}", flush=True)
    else:
        print(as_text(status), flush=True)
