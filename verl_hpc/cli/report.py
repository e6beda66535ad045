"""Write a run's report.html again from its metrics, and say how it went; or compare run sizes.

`report scaling RUN RUN ...` writes the page that computing centres ask for, as Markdown: strong
and weak scaling of runs that differ in ranks, layout and batch.size alone; with --predict also
what the time model of `plan` makes of them, and beside --out FILE a picture, FILE.svg. A RUN is a
run directory, or for scaling also the name of one below runs/.

examples:
  python -m verl_hpc report runs/quickstart-latest/quickstart
  python -m verl_hpc report scaling runs/n1 runs/n2 runs/n4 --out scaling.md
  python -m verl_hpc report scaling runs/n1 runs/n2 runs/n4 --out scaling.md --predict \\
      --efficiency efficiency.yaml
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from verl_hpc.errors import ConfigError

if TYPE_CHECKING:
    from verl_hpc.cli.report_scaling import Prediction

SCALING = "scaling"
_SKIP = 3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("runs", nargs="+", metavar="RUN", help="run directory; or the word scaling, then runs")
    scaling = parser.add_argument_group("of report scaling")
    scaling.add_argument("--out", type=Path, metavar="FILE", help="write the page there")
    scaling.add_argument(
        "--skip", type=int, metavar="N", help=f"first steps that are not counted (default {_SKIP})"
    )
    add = scaling.add_argument
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
        return _scaling(more, arguments)
    others = (arguments.out, arguments.skip, *_of_prediction(arguments))
    if more or any(value not in (None, False) for value in others):
        raise ConfigError(f"report takes one run and no options; did you mean `report {SCALING}`?")
    return _one(Path(first))


def _scaling(words: list[str], arguments: argparse.Namespace) -> int:
    from verl_hpc.cli.output import write_file
    from verl_hpc.cli.report_scaling import scaling_page
    from verl_hpc.runs.find import find_run

    skip = _SKIP if arguments.skip is None else arguments.skip
    if skip < 0:
        raise ConfigError(f"--skip {skip}: a number of steps from 0 up")
    page = scaling_page([find_run(word) for word in words], skip, _prediction(arguments))
    if arguments.out is None:
        print(page, end="")
        return 0
    write_file("--out", arguments.out, page)
    print(arguments.out)
    return 0


def _of_prediction(arguments: argparse.Namespace) -> tuple[Any, ...]:
    return arguments.predict, arguments.cluster, arguments.efficiency, arguments.model_config


def _prediction(arguments: argparse.Namespace) -> Prediction | None:
    from verl_hpc.cli.report_scaling import Prediction

    predict, cluster, efficiency, model_config = _of_prediction(arguments)
    if not predict:
        if cluster or efficiency or model_config:
            raise ConfigError(
                "--cluster, --efficiency and --model-config belong to --predict: add it"
            )
        return None
    picture = None if arguments.out is None else arguments.out.with_suffix(".svg")
    return Prediction(cluster, model_config or (), efficiency, picture)


def _one(directory: Path) -> int:
    from verl_hpc.metrics.log import read_metrics
    from verl_hpc.metrics.names import SCORE, VALIDATION
    from verl_hpc.metrics.report import read_facts, write_report

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
            print(f"{label}: {before:.3f} at step {first}, {after:.3f} at step {last}")
    print(path)
    return 0


if __name__ == "__main__":
    from verl_hpc.cli.main import run_verb

    run_verb("report")
