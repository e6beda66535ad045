"""How long a login node waits for `submit --help` and `submit --dry-run`; the goal is 0.5 s, warm.

usage: python -m benchmarks.login_node [REPEATS]
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time

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


def main(repeats: int = 10) -> None:
    print(f"Load average at the start: {os.getloadavg()[0]:.1f}\n")
    print("| command | median s | least | most |\n| --- | ---: | ---: | ---: |")
    for name, command in CASES.items():
        times = [seconds(command) for _ in range(repeats + 1)][1:]  # the first warms the caches
        print(
            f"| `{name}` | {statistics.median(times):.3f} | {min(times):.3f} | {max(times):.3f} |"
        )


if __name__ == "__main__":
    main(*map(int, sys.argv[1:2]))
