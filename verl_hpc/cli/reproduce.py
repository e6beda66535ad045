"""Reproduce published results of other programs, and compare ours with theirs.

A case is a directory with a case.yaml: what to run, and within which bounds our figures must be.
Without a CASE all below reproductions/ are run, one after the other. Every case has a directory
below --directory, with its runs and a result.json; a case that has one is not run again, and one
that was interrupted goes on. What a case needs and is not here makes its rows say `not run`.

The status is 1 if a figure disagrees and its case gives no reason, or a case fails.

examples:
  python -m verl_hpc reproduce --list
  python -m verl_hpc reproduce nemo_rl_invariants slime_bitwise_rerun
  python -m verl_hpc reproduce --directory /scratch/me/reproduce --weights /scratch/me/models
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from verl_hpc.cli.output import write_file
from verl_hpc.reproduction.case import Case, find_cases
from verl_hpc.reproduction.page import results_page, terminal_lines
from verl_hpc.reproduction.run import Places, kept_result, missing, run_case

PAGE = "reproduce.html"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("cases", nargs="*", metavar="CASE", help="name below reproductions/, or a directory")
    add("--list", action="store_true", help="say what cases there are, and what keeps any back")
    add(
        "--directory",
        type=Path,
        default=Path("runs/reproduce"),
        metavar="DIR",
        help="directory of results (default runs/reproduce)",
    )
    add(
        "--data",
        type=Path,
        default=Path("../shared/data"),
        metavar="DIR",
        help="directory that has verl_arithmetic and gsm8k (default ../shared/data)",
    )
    add("--weights", type=Path, metavar="DIR", help="directory of models, by their names on a hub")


def run(arguments: argparse.Namespace) -> int:
    weights = arguments.weights
    places = Places(
        arguments.directory.resolve(),
        arguments.data.resolve(),
        None if weights is None else weights.resolve(),
    )
    cases = find_cases(arguments.cases)
    return _list(cases, places) if arguments.list else _run(cases, places)


def _list(cases: Sequence[Case], places: Places) -> int:
    width = max(len(case.name) for case in cases)
    for case in cases:
        state = missing(case, places) or f"about {case.file.minutes} minutes"
        if kept_result(case, places):
            state = "has a result"
        print(f"{case.name:<{width}}  {case.file.title} ({state})")
    return 0


def _run(cases: Sequence[Case], places: Places) -> int:
    outcomes = []
    for case in cases:
        outcomes.append((case, run_case(case, places)))
        print(*terminal_lines(*outcomes[-1]), "", sep="\n", flush=True)
    places.out.mkdir(parents=True, exist_ok=True)
    path = places.out / PAGE
    write_file("--directory", path, results_page(outcomes))
    print(path)
    return 0 if all(result.is_good(case) for case, result in outcomes) else 1
