"""How near is `plan` to steps that others have published?

    python -m benchmarks.published

prints each row of rows.toml with the published seconds of a step, those of `plan` with its default
factors, and their ratio. Rows are held out of the fit by a rule of their names (rows.py).
"""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks.figures import report
from benchmarks.published.rows import read_rows
from benchmarks.published.table import table
from verl_hpc.planner.timing.cost import Efficiency


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--markdown", type=Path, help="page whose table is replaced")
    arguments = parser.parse_args()
    report(table(read_rows(), Efficiency()), None, arguments.markdown, None)


if __name__ == "__main__":
    main()
