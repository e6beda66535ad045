"""Options that `submit` and `doctor` share: requests to Slurm in addition to the site profile."""

from __future__ import annotations

import argparse


def add_job_options(parser: argparse.ArgumentParser) -> None:
    """Add --account, --partition, --qos and --directive."""
    add = parser.add_argument
    add("--account", metavar="A", help="account to charge")
    add("--partition", metavar="P")
    add("--qos", metavar="Q")
    add(
        "--directive",
        action="append",
        default=[],
        metavar="OPTION",
        help="one more option of sbatch, such as reservation=r; repeat it for more",
    )
