"""How well the end of a chain is foreseen, on the accounts of two real clusters.

Reads data/data_on_submit_days/CLUSTER of github.com/mila-iqia/slurm-queue-time-pred (MIT): what
sacct had of the jobs that waited at noon of each day on Graham and Cedar, May to July 2021. A clock
is set to every half day. The forecast sees the jobs of the 21 days before it that have started; the
truth is a chain that waits as the next job of its kind did after the clock.

  python -m benchmarks.forecast .../data_on_submit_days/graham
"""

from __future__ import annotations

import argparse
import csv
import re
import statistics
from bisect import bisect_left
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from verl_hpc.budget.days import DAY_S
from verl_hpc.budget.forecast import Links, Wait, chain_of, waits_like
from verl_hpc.slurm.accounting import Life

HISTORY_S = 21 * DAY_S
STEP_S = 3600.0


def lives_of(directory: Path) -> Iterator[Life]:
    """Every job once, as `parse_lives` would have it."""
    seen = set()
    for path in sorted(directory.glob("*.csv")):
        with path.open(newline="") as file:
            for row in csv.DictReader(file):
                if row["job_unique_id"] in seen or not row["start_time"]:
                    continue
                seen.add(row["job_unique_id"])
                submitted, eligible, started = (
                    datetime.fromisoformat(row[f"{name}_time"]).replace(tzinfo=UTC).timestamp()
                    for name in ("submit", "eligible", "start")
                )
                gpus = re.search(r"gres/gpu[^=,]*=(\d+)", row["req_tres"])
                yield Life(
                    job_id=row["job_unique_id"], state="COMPLETED", submitted=submitted,
                    eligible=eligible, started=started, elapsed_s=1.0 + float(row["elapsed_time"]),
                    nodes=int(float(row["alloc_nodes"])), gpus=int(gpus.group(1)) if gpus else 0,
                    cpus=int(row["req_cpus"]), joules=None, reason="", limit_s=None,
                )  # fmt: skip


def waited(truth: list[Wait], then: float, links: int, link_s: float) -> float | None:
    """Seconds that a chain really waited; None if the record ends before it does."""
    total = 0.0
    for _ in range(links):
        index = bisect_left(truth, (then, 0.0))
        if index == len(truth):
            return None
        total += truth[index].seconds
        then += truth[index].seconds + link_s
    return total


def report(lives: list[Life], nodes: int, on_gpus: bool, number: int, hours: int) -> str:
    """A row of results/2026-11-queue-forecast.md."""
    links = Links(nodes, nodes, STEP_S, 0.0, hours * STEP_S)
    truth, busy_s = waits_like(lives, nodes, on_gpus), number * hours * STEP_S
    errors, held, shares = [], [], []
    now = truth[0].eligible + HISTORY_S
    while (seconds := waited(truth, now, number, links.usable_s)) is not None:
        past = [
            x for x in lives if now - HISTORY_S <= (x.eligible or 0) and (x.started or 0) <= now
        ]
        waits = waits_like(past, nodes, on_gpus)
        _, middle, slowest = chain_of(number * hours, links, waits).waits_s
        errors.append(abs(middle - seconds) / (busy_s + seconds))
        held.append(seconds <= slowest)
        shares.append(seconds / busy_s)
        now += DAY_S / 2
    within = statistics.mean(error <= 0.15 for error in errors)
    cells = (
        f"{number} x {hours} h, {nodes} node{'s' * (nodes > 1)}{', GPUs' * on_gpus}",
        len(errors),
        f"{statistics.median(shares):.1f}",
        f"{within:.0%}",
        f"{statistics.median(errors):.0%}",
        f"{statistics.mean(held):.0%}",
    )
    return f"| {' | '.join(map(str, cells))} |"


def main(words: list[str] | None = None) -> None:
    """Command line of this module; without `words` those of the process."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.forecast",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("directory", type=Path, metavar="CLUSTER", help="directory of its *.csv")
    directory = parser.parse_args(words).directory
    lives = sorted(lives_of(directory), key=lambda life: life.eligible or 0.0)
    if not lives:
        parser.error(f"{directory}: has no jobs in files named *.csv; give the dataset's directory")
    print(
        "| chain | forecasts | waits / runs | first date within 15 % | median error | second held |"
    )
    print("|---|---:|---:|---:|---:|---:|")
    for nodes, on_gpus in ((1, True), (4, False)):
        kind = [x for x in lives if (x.gpus > 0) == on_gpus and nodes / 2 <= x.nodes <= 2 * nodes]
        for number, hours in ((6, 12), (6, 24), (12, 24)):
            print(report(kind, nodes, on_gpus, number, hours), flush=True)


if __name__ == "__main__":
    main()
