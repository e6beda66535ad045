"""Start a debugger in one rank of a run that is under way, and say how to connect to it.

The rank keeps running; it stops only at breakpoints, and then the others wait for it. The debugger
listens on the loopback address of the rank's node, for your own user only, until the run ends. It
works also where the rank hangs in Python code. The rank's environment needs debugpy. RUN is a run
directory or the name of one below runs/.

examples:
  python -m verl_hpc attach ppo_lab --rank 3
  python -m verl_hpc attach runs/ppo_lab --rank 3 --json
"""

from __future__ import annotations

import argparse
import json
import socket
import time
from dataclasses import asdict
from pathlib import Path

from verl_hpc.cli.hang import ranks_under_way
from verl_hpc.errors import ClusterError, ConfigError
from verl_hpc.runs.attach import Listening, ask_for_debugger, read_answer, withdraw_request
from verl_hpc.runs.find import find_run
from verl_hpc.runs.ranks import Ranks

_PATIENCE_S = 20.0
"""Seconds to wait beyond two intervals of the watchdogs; importing debugpy takes some seconds."""
_LOCAL_PORT = 5678
_WAITING = (
    "While it is stopped at a breakpoint the other ranks wait, for no longer than "
    "runtime.collective_timeout_s. Disconnecting resumes it."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("run", metavar="RUN", help="run directory or name")
    add("--rank", type=int, required=True, metavar="R", help="rank to debug, from 0")
    add("--json", action="store_true", help="one JSON object with host and port")


def run(arguments: argparse.Namespace) -> int:
    directory = find_run(arguments.run)
    ranks = ranks_under_way(directory, "attach to")
    last = len(ranks.ranks) - 1
    if not 0 <= arguments.rank <= last:
        raise ConfigError(f"--rank {arguments.rank}: {directory} has the ranks 0 to {last}")
    listening = _ask(directory, ranks, arguments.rank)
    print(json.dumps(asdict(listening)) if arguments.json else _instructions(listening))
    return 0


def _ask(directory: Path, ranks: Ranks, rank: int) -> Listening:
    patience = 2 * ranks.interval_s + _PATIENCE_S
    request = ask_for_debugger(directory, rank)
    deadline = time.monotonic() + patience
    while (listening := read_answer(directory, rank, request)) is None:
        if time.monotonic() > deadline:
            withdraw_request(directory, rank)
            raise ClusterError(
                f"rank {rank} has not answered within {patience:.0f} s: it, or rank 0, runs no "
                f"Python code; `python -m verl_hpc hang {directory}` shows what it is in"
            )
        time.sleep(0.2)
    if listening.error:
        raise ClusterError(
            f"rank {rank} cannot start a debugger: {listening.error}; pip install debugpy in its "
            "environment if that is missing, and start the run again"
        )
    return listening


def _instructions(listening: Listening) -> str:
    here = listening.host == socket.gethostname()
    port = listening.port if here else _LOCAL_PORT
    launch = {
        "name": f"rank {listening.rank}",
        "type": "debugpy",
        "request": "attach",
        "connect": {"host": "127.0.0.1", "port": port},
        "pathMappings": [{"localRoot": "${workspaceFolder}", "remoteRoot": listening.code}],
        "justMyCode": False,
    }
    where = f"rank {listening.rank} on {listening.host} (process {listening.pid})"
    tunnel = f"ssh -L {_LOCAL_PORT}:127.0.0.1:{listening.port} {listening.host}"
    lines = [f"{where} listens at 127.0.0.1:{listening.port}, to your user alone"]
    if not here:
        lines += ["A tunnel from your machine, with -J LOGIN_NODE from outside:", f"  {tunnel}"]
    lines += ["VS Code, in configurations of .vscode/launch.json:"]
    lines += [f"  {line}" for line in json.dumps(launch, indent=2).splitlines()]
    return "\n".join([*lines, _WAITING])
