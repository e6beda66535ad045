"""Start a virtual Slurm cluster on this machine, end it, or print its environment.

examples:
  eval "$(python -m verl_hpc.testing.slurm_lab up --nodes 4)"
  sinfo
  python -m verl_hpc.testing.slurm_lab down
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from verl_hpc.errors import VerlHpcError
from verl_hpc.testing.slurm_lab.lab import Lab
from verl_hpc.testing.slurm_lab.settings import LabSettings


def main(argv: Sequence[str] | None = None) -> int:
    """Command line of this module."""
    arguments = _parser().parse_args(argv)
    try:
        return _run(arguments)
    except VerlHpcError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m verl_hpc.testing.slurm_lab",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    place = Path(tempfile.gettempdir()) / "slurm_lab"
    add("verb", choices=("up", "down", "env"))
    add("--nodes", type=int, default=LabSettings.nodes, metavar="N", help="default: %(default)s")
    add("--cpus", type=int, default=LabSettings.cpus, metavar="N", help="of a node, pretended")
    add("--gpus", type=int, default=LabSettings.gpus, metavar="N", help="of a node, pretended")
    add("--cgroup", action="store_true", help="signal jobs as most clusters do (cgroup v1)")
    add("--accounts", action="store_true", help="sacct answers; needs slurmdbd and MariaDB")
    add("--dir", type=Path, default=place, help="all that the lab keeps; default: %(default)s")
    return parser


def _run(arguments: argparse.Namespace) -> int:
    lab = Lab(
        LabSettings(
            directory=arguments.dir.resolve(),
            nodes=arguments.nodes,
            cpus=arguments.cpus,
            gpus=arguments.gpus,
            cgroup=arguments.cgroup,
            accounting=arguments.accounts,
        )
    )
    if arguments.verb == "up":
        lab.up()
    elif arguments.verb == "down":
        lab.down()
        return 0
    elif not lab.is_up():
        print(f"no lab is up in {lab.directory}", file=sys.stderr)
        return 1
    for name, value in lab.environment.items():
        print(f"export {name}={value}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
