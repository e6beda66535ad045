"""A web page on this machine that shows the runs of a directory while they run: read-only.

It listens on the loopback address alone, at a free port or the one given, until Ctrl-C. The page
opens only with the token in the printed address, which is a new one each time. Runs are looked for
in DIR, up to three levels down; DIR may also be one run.

examples:
  python -m verl_hpc dashboard
  python -m verl_hpc dashboard /scratch/project/runs --port 8080
  ssh -L 8080:127.0.0.1:8080 LOGIN_NODE        # on your own machine; then open the address there
"""

from __future__ import annotations

import argparse
from pathlib import Path

from verl_hpc.cli.dashboard.server import make_server
from verl_hpc.cli.list import directory_of_runs
from verl_hpc.errors import ConfigError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("directory", nargs="?", type=Path, metavar="DIR", help="where runs are (default: runs)")
    add("--port", type=int, default=0, metavar="P", help="port to listen at (default: a free one)")


def run(arguments: argparse.Namespace) -> int:
    directory = directory_of_runs(arguments.directory)
    if directory is None:
        return 0
    if not 0 <= arguments.port <= 65535:
        raise ConfigError(f"--port {arguments.port}: a number from 1 to 65535, or 0 for a free one")
    try:
        server = make_server(directory, arguments.port)
    except OSError as error:
        raise ConfigError(
            f"--port {arguments.port}: {error.strerror}; name another, or none for a free one"
        ) from None
    with server:
        print(f"{server.address}\nCtrl-C ends it.", flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            print()
    return 0
