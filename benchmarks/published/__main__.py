"""How near is `plan` to steps that others have published?

    python -m benchmarks.published
    python -m benchmarks.published --fit

The first prints each row of rows.toml: the published seconds of a step, those of `plan` with its
default factors, and their ratio. Rows are held out of the fit by a rule of their names (rows.py).
The second fits the factors to the other rows, prints them and their spread, which
planner/timing/cost.py has as defaults, and the table with them; it takes two minutes.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks.figures import report
from benchmarks.published.fit import FITTED, fit, spread
from benchmarks.published.rows import read_rows
from benchmarks.published.table import table
from verl_hpc.planner.timing.cost import Efficiency


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--fit", action="store_true", help="fit the factors first")
    parser.add_argument("--markdown", type=Path, help="page whose table is replaced")
    arguments = parser.parse_args()
    rows, efficiency = read_rows(), Efficiency()
    if arguments.fit:
        known = [row for row in rows if not row.held_out]
        efficiency = fit(known, efficiency)
        for _, terms in FITTED.values():
            print("".join(f"{term}: {getattr(efficiency, term):g}\n" for term in terms), end="")
        latent = [row for row in rows if row.arch.latent]
        stale = [row for row in rows if row.config.rollout.staleness and row not in latent]
        others = [row for row in rows if row not in [*stale, *latent]]
        print(f"spread: {spread(known, efficiency):.3f} of {len(known)} steps", end="")
        print(f", {spread(others, efficiency):.3f} of all {len(others)} on policy", end="")
        print(f", {spread(stale, efficiency):.3f} of all {len(stale)} with staleness", end="")
        print(f", {spread(latent, efficiency):.3f} of all {len(latent)} with latent attention\n")
    report(table(rows, efficiency), None, arguments.markdown, None)


if __name__ == "__main__":
    main()
