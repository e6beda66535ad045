"""Write a run's report.html again from its metrics, and say how it went.

examples:
  python -m verl_hpc report runs/quickstart
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from verl_hpc.errors import DataError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", type=Path, metavar="RUN", help="run directory")


def run(arguments: argparse.Namespace) -> int:
    from verl_hpc.metrics.log import read_metrics
    from verl_hpc.metrics.names import SCORE, VALIDATION
    from verl_hpc.metrics.report import write_report

    facts = arguments.run / "facts.json"
    try:
        known = json.loads(facts.read_text(encoding="utf-8")) if facts.exists() else {}
    except ValueError as error:
        raise DataError(f"{facts}: not JSON ({error}); delete it and try again") from None
    path = write_report(arguments.run, known)
    rows = read_metrics(arguments.run)
    for name, label in ((VALIDATION, "held-out score"), (SCORE, "reward")):
        found = [(row["step"], row[name]) for row in rows if row.get(name) is not None]
        if found:
            (first, before), (last, after) = found[0], found[-1]
            print(f"{label}: {before:.3f} at step {first}, {after:.3f} at step {last}")
    print(path)
    return 0
