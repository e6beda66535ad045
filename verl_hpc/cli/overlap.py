"""How many prompts of a run's evaluation occur in its training data as well.

With several runs that follow each other, such as SFT and then GRPO: the evaluation of each against
the training data of all of them. Relative paths of data files are read from where this is started.

examples:
  python -m verl_hpc overlap runs/gsm8k_sft runs/gsm8k_grpo
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from verl_hpc.errors import ConfigError

if TYPE_CHECKING:
    from verl_hpc.config.run import RunConfig
    from verl_hpc.data.problem import Source


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN_DIR", help="has config.yaml")


def run(arguments: argparse.Namespace) -> int:
    from verl_hpc.config.load import load_config
    from verl_hpc.data.overlap import count_overlaps
    from verl_hpc.data.sources import open_source

    configs = [load_config(directory / "config.yaml") for directory in arguments.runs]
    runs = [run for config in configs for run in config.by_task.values() or [config]]
    training = [_trained_on(run) for run in runs]
    of_runs = ", ".join(map(str, arguments.runs))
    for directory, config in zip(arguments.runs, configs, strict=True):
        sets = config.evaluation_sets
        if not sets:
            raise ConfigError(f"{directory}: the run has no data.evaluation to look for")
        sources = {name: open_source(chosen.source) for name, chosen in sets.items()}
        for name, counts in zip(sources, count_overlaps(training, sources), strict=True):
            print(
                f"{directory}: {name} has {counts.evaluation_rows} rows with "
                f"{counts.evaluation_prompts} different prompts; {counts.shared_prompts} of these "
                f"occur in the {counts.training_rows} rows of training of {of_runs}",
                flush=True,
            )
    return 0


def _trained_on(config: RunConfig) -> Source:
    """Return the training data without the rows that data.overlap: drop leaves out."""
    from verl_hpc.data.check import HeldOut, check_data
    from verl_hpc.data.mixed import without_rows
    from verl_hpc.data.sources import open_source

    source, sets = open_source(config.data.train), config.evaluation_sets
    if not sets or config.data.overlap != "drop":
        return source
    evaluation = [HeldOut(name, s.source, open_source(s.source)) for name, s in sets.items()]
    return without_rows(source, check_data(config.data, source, evaluation).dropped)
