"""What an account has and has used, and what runs have: hours, waiting, lost work, energy, CO2.

RUN is a run directory or the name of one below runs/; without it, all of them. Slurm's accounts are
asked once for all runs; without accounts, runs' own records count. The page is Markdown; with
--report it goes into a file, for a centre's final report.

examples:
  python -m verl_hpc budget
  python -m verl_hpc budget ppo_70b --account proj123 --since 2026-10-01
  python -m verl_hpc budget --cluster slurm/my_site.yaml --report use_of_proj123.md
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

from verl_hpc.errors import ConfigError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("runs", nargs="*", metavar="RUN", help="run directories or names (default: all in runs/)")
    add("--account", metavar="A", help="default: the site profile's, else yours in Slurm")
    add("--cluster", metavar="YAML", help="site profile (default: that of the first run)")
    add("--since", metavar="DATE", help="count the account's use from there (default: 1 January)")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--report", type=Path, metavar="FILE", help="write the page there")
    form.add_argument("--json", action="store_true", help="print one JSON object")


def run(arguments: argparse.Namespace) -> int:
    from verl_hpc.budget.days import parse_day
    from verl_hpc.budget.page import render_page
    from verl_hpc.cli.budget_gather import gather
    from verl_hpc.cli.output import write_file
    from verl_hpc.runs.find import RUNS, find_run, named_runs

    now = time.time()
    since = None if arguments.since is None else parse_day(arguments.since, "--since")
    if since is not None and since > now:
        raise ConfigError(f"--since {arguments.since}: that day has not begun; give an earlier one")
    runs = {word: find_run(word) for word in arguments.runs} or named_runs(RUNS)
    report = gather(runs, now, arguments.account, arguments.cluster, since)
    if arguments.report is not None:
        write_file("--report", arguments.report, render_page(report))
        print(arguments.report)
        return 0
    print(json.dumps(report.as_json(), indent=1) if arguments.json else render_page(report))
    return 0
