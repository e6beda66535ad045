"""Write a run's report.html again from its metrics, and say how it went; or compare runs.

`report compare RUN RUN ...` prints final figures and writes a page: settings that differ, curves
over steps, tokens and hours with seeds as mean and band, and figures against rank-hours.

`report scaling RUN RUN ...` writes the page that computing centres ask for, as Markdown: strong
and weak scaling of runs that differ in ranks, layout and batch.size alone; with --predict also
what the time model of `plan` makes of them. A RUN is a run directory, or for compare and scaling
also the name of one below runs/; for compare also a directory of runs, such as a sweep's.

examples:
  python -m verl_hpc report runs/quickstart-latest/quickstart
  python -m verl_hpc report compare runs/lr_sweep runs/baseline --out compare.html
  python -m verl_hpc report scaling runs/n1 runs/n2 runs/n4 --out scaling.md
  python -m verl_hpc report scaling runs/n1 runs/n2 runs/n4 --out scaling.md --predict \\
      --efficiency efficiency.yaml
"""

from __future__ import annotations

import argparse
from pathlib import Path

from verl_hpc.errors import ConfigError
from verl_hpc.metrics.log import read_metrics
from verl_hpc.metrics.names import SCORE, VALIDATION
from verl_hpc.metrics.report import read_facts, write_report
from verl_hpc.metrics.text import sparkline

COMPARE, SCALING = "compare", "scaling"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("runs", nargs="+", metavar="RUN", help="run directory; or compare or scaling, then runs")
    add("--out", type=Path, metavar="FILE", help="file of the page of compare or scaling")
    scaling = parser.add_argument_group("of report scaling")
    add = scaling.add_argument
    add("--skip", type=int, metavar="N", help="first steps that are not counted (default 3)")
    add("--predict", action="store_true", help="the prediction beside what was measured")
    add("--cluster", metavar="YAML", help="site profile (default: each run's own)")
    add("--efficiency", metavar="FILE", help="what `plan calibrate` has written")
    add(
        "--model-config",
        action="append",
        metavar="[ROLE=]FILE",
        help="config.json of the model, or of a role's, where it is not at its path",
    )


def run(arguments: argparse.Namespace) -> int:
    first, *more = arguments.runs
    if first == SCALING:
        from verl_hpc.cli.report_scaling import run_scaling

        return run_scaling(more, arguments)
    given = {n for n, value in vars(arguments).items() if value not in (None, False)} - {"runs"}
    if first == COMPARE and given <= {"out"}:
        from verl_hpc.cli.report_compare import run_compare

        return run_compare(more, arguments.out)
    if more or given:
        raise ConfigError(
            f"report takes one run and no options, and report {COMPARE} no option but --out; did "
            f"you mean `report {SCALING}` or `report {COMPARE}`?"
        )
    return _one(Path(first))


def _one(directory: Path) -> int:
    facts = read_facts(directory)
    try:
        path = write_report(directory, facts)
    except OSError as error:
        raise ConfigError(
            f"cannot write a report into {directory}: {error}; copy config.yaml, facts.json and "
            "metrics.jsonl to a directory of your own, and name that"
        ) from None
    rows = read_metrics(directory)
    for name, label in ((VALIDATION, "evaluation score"), (SCORE, "reward")):
        points = [(row["step"], row[name]) for row in rows if row.get(name) is not None]
        if points:
            (first, before), (last, after) = points[0], points[-1]
            # At most so many as fit a terminal beside the words.
            curve = sparkline(value for _, value in points[:: -(-len(points) // 30)])
            print(f"{label}: {before:.3f} at step {first}, {after:.3f} at step {last} {curve}")
    print(path)
    return 0
