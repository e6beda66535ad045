"""How long a login node waits for `submit --help` and `submit --dry-run`; the goal is 0.5 s, warm.

usage: python -m benchmarks.login_node [--repeats N] [--markdown FILE] [--json FILE]
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.figures import machine, machine_markdown, markdown_table, report, spread

SUBMIT = [sys.executable, "-m", "verl_hpc.submit"]
RUN = [
    "--config", "configs/run/ppo_70b.yaml", "--cluster", "slurm/h100_infiniband_pyxis.yaml",
    "--nodes", "16", "--time", "24:00:00",
]  # fmt: skip
CASES = {
    "python -c pass": [sys.executable, "-c", "pass"],
    "submit --help": [*SUBMIT, "--help"],
    "submit --dry-run": [*SUBMIT, *RUN, "--dry-run"],
    "submit --script-only": [*SUBMIT, *RUN, "--script-only"],
}


def seconds(command: list[str]) -> float:
    start = time.perf_counter()
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - start


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--markdown", type=Path)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args(argv)
    facts = machine(("verl_hpc",))
    # The first of each warms the caches.
    times = {
        name: spread([seconds(command) for _ in range(arguments.repeats + 1)][1:])
        for name, command in CASES.items()
    }
    rows = [
        (f"`{name}`", f"{t['median']:.3f}", f"{t['min']:.3f}", f"{t['max']:.3f}")
        for name, t in times.items()
    ]
    text = "\n\n".join(
        (
            "`python -m benchmarks.login_node`",
            machine_markdown(facts),
            markdown_table(("command", "median s", "min", "max"), rows),
        )
    )
    report(text, {"machine": facts, "seconds": times}, arguments.markdown, arguments.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
