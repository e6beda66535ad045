"""Run the steps of the first hour on a GPU, and write a page after each.

    benchmarks/first_hour.sh --out runs/first_hour [--wheels DIR]
    benchmarks/first_hour.sh --rehearse

DIR/first_hour.md has what is known so far, DIR/NAME.json each step's record, DIR/NAME.log its
output. A step that is done is not run again; --again NAMES runs it all the same. Status 0: every
step is done, or cannot be run here; 1: one failed or was out of time; 2: nothing could be run.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.first_hour import wheels
from benchmarks.first_hour.runner import Runner
from benchmarks.first_hour.steps import STEPS

NAMES = tuple(step.name for step in STEPS)


def main(argv: Sequence[str] | None = None) -> int:
    """Command line of this package."""
    arguments = _parse(argv)
    if arguments.list_wheels:
        print("\n".join(wheels.to_carry(arguments.list_wheels)))
        return 0
    out = arguments.out or Path(
        "runs", "first_hour_rehearsal" if arguments.rehearse else "first_hour"
    )
    carried = arguments.wheels and arguments.wheels.resolve()
    runner = Runner(STEPS, out.resolve(), arguments.rehearse, carried)
    return runner.run(arguments.only, arguments.again)


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="benchmarks/first_hour.sh",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--out", type=Path, metavar="DIR", help="default: runs/first_hour, or _rehearsal")
    add("--wheels", type=Path, metavar="DIR", help="install what is missing from here, offline")
    add("--rehearse", action="store_true", help="tiny shapes on the CPU, without a GPU")
    add("--only", type=_names, default=NAMES, metavar="STEPS", help=",".join(NAMES))
    add("--again", type=_names, default=(), metavar="STEPS", help="even if they are done")
    carry = "what to carry, as lines for pip download: few where torch is and no vLLM, or all"
    add("--list-wheels", choices=("few", "all"), help=carry)
    return parser.parse_args(argv)


def _names(text: str) -> tuple[str, ...]:
    chosen = tuple(text.split(","))
    unknown = [name for name in chosen if name not in NAMES]
    if unknown:
        raise argparse.ArgumentTypeError(f"no step {', '.join(unknown)}; {', '.join(NAMES)}")
    return chosen


if __name__ == "__main__":
    sys.exit(main())
